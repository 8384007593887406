"""What SQS can answer besides yes, as few classes as there are different things to do about it."""

from __future__ import annotations

from kombu.exceptions import OperationalError


class SQSError(Exception):
    """A request to SQS failed; the class says what to do about it.

    Args:
        message: a sentence for a person.
        code: the error code of SQS or the name of botocore's exception, for example `"RequestThrottled"`.
        action: the API action, for example `"ReceiveMessage"`.
    """

    def __init__(self, message: str, *, code: str = "", action: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.action = action

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.code, self.action)


def _rebuild(cls: type[SQSError], message: str, code: str, action: str) -> SQSError:
    return cls(message, code=code, action=action)


class UnavailableError(SQSError):
    """Network failure, timeout or 5xx: try again, with backoff."""


class ThrottledError(SQSError):
    """SQS or KMS asks us to slow down: try again, with backoff."""


class OverLimitError(SQSError):
    """Too many messages in flight in this queue: wait until some are settled."""


class CredentialsRefusedError(SQSError):
    """No credentials, or expired or wrong ones: look for them anew, then try again."""


class ClockSkewError(CredentialsRefusedError):
    """This machine's clock is too far from SQS's for its signatures: try again, and say so."""


class RefusedError(SQSError, OperationalError):
    """SQS has said no: to ask again at once is of no use.

    An OperationalError, since that is what Celery's users expect of `delay()`. kombu makes one of what it has
    retried in vain, and lets pass what it does not retry.
    """


class AccessDeniedError(RefusedError):
    """The credentials are good, the permission is missing: try again slowly, and say so."""


class QueueDoesNotExistError(RefusedError):
    """No queue of that name or URL (or no permission to see it)."""


class ReceiptHandleInvalidError(RefusedError):
    """The receipt handle no longer holds the message: deleted, received again, or expired."""


class UnrecognizedResponseError(SQSError):
    """A refusal without a code, by a proxy, a gateway or a wrong endpoint: try again, and say so."""


class RequestRefusedError(RefusedError):
    """Any other refusal by SQS: the request is wrong and will stay so."""


#: What passes by itself.
PASSING_ERRORS = (ThrottledError, UnavailableError, UnrecognizedResponseError, OverLimitError)
