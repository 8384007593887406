"""A command's request, made again where its error passes. Workers have loops of their own for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from celery_sqs_visibility.aws.attempts import attempt
from celery_sqs_visibility.errors import SQSError, ThrottledError, UnavailableError
from celery_sqs_visibility.policy.backoff import pause

T = TypeVar("T")

#: Attempts at one request.
ATTEMPTS: Final = 5

#: A request that was refused so was not carried out.
NOT_DONE: Final = (ThrottledError,)

#: One that got no answer may have been.
PASSING: Final = (ThrottledError, UnavailableError)


def patiently(request: Callable[[], T], errors: tuple[type[SQSError], ...] = NOT_DONE) -> T:
    """Make a request, and again while SQS throttles it. The command's thread.

    Args:
        request: makes it.
        errors: `PASSING` for a request that may be carried out twice.

    Raises:
        SQSError: another error, or the last attempt's.
    """
    return attempt(request, errors, map(pause, range(1, ATTEMPTS)))
