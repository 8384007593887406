"""A request that is made again where its error passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from celery_sqs_visibility.errors import SQSError

T = TypeVar("T")


def attempt(
    request: Callable[[], T], errors: tuple[type[SQSError], ...] | type[SQSError], pauses: Iterable[float]
) -> T:
    """Make a request, and after each of these pauses, in seconds, again while it fails so. The thread waits.

    Raises:
        SQSError: another error, or the last attempt's.
    """
    for seconds in pauses:
        try:
            return request()
        except errors:
            threading.Event().wait(seconds)
    return request()
