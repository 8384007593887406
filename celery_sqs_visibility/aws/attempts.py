"""Requests that are made again where their error passes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock

T = TypeVar("T")

Errors = tuple[type[SQSError], ...] | type[SQSError]


def attempt(
    request: Callable[[], T],
    errors: Errors,
    pauses: Iterable[float],
    wait: Callable[[float], bool] | None = None,
) -> T:
    """Make a request, and after each of these pauses, in seconds, again while it fails so. The thread waits.

    Args:
        request: makes it.
        errors: those that pass.
        pauses: one before each further attempt.
        wait: lets a pause pass; `True` if the attempts are over. An event's `wait` does.

    Raises:
        SQSError: another error, or the last attempt's.
    """
    wait, left = wait or threading.Event().wait, iter(pauses)
    while True:
        try:
            return request()
        except errors:
            seconds = next(left, None)
            if seconds is None or wait(seconds):
                raise


def pauses_until(deadline: float, clock: Clock) -> Iterator[float]:
    """Pauses with jitter, in seconds, until that monotonic instant."""
    for failures in itertools.count(1):
        left = deadline - clock.monotonic()
        if left <= 0:
            return
        yield min(left, pause(failures))
