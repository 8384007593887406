"""Requests of a command at the same time: those of one queue do not wait for those of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Things that are asked about at the same time.
MOST_THREADS: Final = 16


def for_each(things: Iterable[T], ask: Callable[[T], R]) -> list[R]:
    """The answers, in the order of the things. Any thread but an event loop's; it waits for all.

    What `ask` raises is raised when all have ended.
    """
    things = list(things)
    if not things:
        return []
    with ThreadPoolExecutor(min(len(things), MOST_THREADS), "sqs-ask") as threads:
        return list(threads.map(ask, things))
