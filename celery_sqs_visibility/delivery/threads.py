"""How every background thread of the package is started, and reads a set that others change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: A copy is tried anew when a member came or went meanwhile; one attempt takes microseconds.
COPY_ATTEMPTS: Final = 1000


def start_thread(target: Callable[..., None], name: str, *args: object) -> threading.Thread | None:
    """Start a daemon thread; `None` if the system refuses a new one. Any thread; never raises."""
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads just now, or the interpreter is ending
        return None
    return thread


def copy_of(members: Iterable[T]) -> list[T]:
    """The members of a `WeakSet` that other threads may change. Any thread.

    Python code iterates a `WeakSet`, with a RuntimeError where a member comes or goes meanwhile.
    """
    for _ in range(COPY_ATTEMPTS - 1):
        try:
            return list(members)
        except RuntimeError:  # Set changed size during iteration
            continue
    return list(members)
