"""Retries of requests whose errors are temporary."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock, sleep

T = TypeVar("T")

Errors = tuple[type[SQSError], ...] | type[SQSError]


def attempt(
    request: Callable[[], T],
    errors: Errors,
    pauses: Iterable[float],
    wait: Callable[[float], object] = sleep,
) -> T:
    """Make a request, and repeat it after each pause while it fails with one of `errors`. Blocks.

    Args:
        request: makes it.
        errors: those worth a retry.
        pauses: seconds before each retry.
        wait: waits for a pause; gives up if it returns `True`, as an event's `wait` does.

    Raises:
        SQSError: any other error, or the last attempt's.
    """
    left = iter(pauses)
    while True:
        try:
            return request()
        except errors:
            seconds = next(left, None)
            if seconds is None or wait(seconds):
                raise


def pauses_until(deadline: float, clock: Clock) -> Iterator[float]:
    """Yield pauses in seconds, with jitter, until `deadline` on the monotonic clock."""
    for failures in itertools.count(1):
        left = deadline - clock.monotonic()
        if left <= 0:
            return
        yield min(left, pause(failures))
