"""The one sentence with which a worker or beat ends that cannot start."""

from __future__ import annotations

from typing import Final

from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ClockSkewError,
    OverLimitError,
    QueueDoesNotExistError,
    SQSError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
)

#: Errors that pass without a change of settings or of rights, but for those of TLS.
PASSING: Final = (UnavailableError, ThrottledError, OverLimitError, ClockSkewError)

#: What to do about an error that ends the process, where its own sentence does not say that.
REMEDIES: Final[tuple[tuple[type[SQSError], str], ...]] = (
    (AccessDeniedError, "Grant the permission to the credentials that the worker uses."),
    (QueueDoesNotExistError, "Create the queue, or correct its name or URL."),
    (UnrecognizedResponseError, "Correct the endpoint: it does not answer as SQS does."),
)


def passes(error: SQSError) -> bool:
    """Whether to wait may help."""
    return isinstance(error, PASSING) and not isinstance(error, TLSError)


def reason_and_remedy(error: SQSError) -> str:
    """The sentence of the error, and one that says what to do."""
    remedy = next((text for cls, text in REMEDIES if isinstance(error, cls)), "")
    if passes(error):
        remedy = "With broker_connection_retry_on_startup it would be waited for."
    return f"{str(error).rstrip('.')}. {remedy}".rstrip()
