"""Errors: those that users see, and those that SQS answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kombu.exceptions import KombuError, OperationalError

#: How many failures a `PublishError` spells out.
FAILURES_SHOWN = 3


class SQSVisibilityError(Exception):
    """The root of this package's errors."""


class OptionError(SQSVisibilityError, ValueError):
    """A transport option is misspelt, out of bounds or contradicts another; the message says which.

    Attributes:
        sentences: one for each wrong option, if there are several; the message has all.
    """

    sentences: tuple[str, ...] = ()


class PublishFailure(NamedTuple):
    """A message that `publish_batch` could not send. As a tuple it has two elements, id and error.

    Attributes:
        task_id: `None` for a message that is no task.
        error: an `SQSError` in most cases.
    """

    task_id: str | None
    error: Exception

    @property
    def reason(self) -> str:
        """The error's text."""
        return str(self.error)


class PublishError(SQSVisibilityError):
    """Some messages of a block were not sent; all others were.

    Attributes:
        failures: the task id, reason and error of each.
        published: the number of all messages in the block.
    """

    def __init__(self, failures: Sequence[tuple[str | None, Exception]], published: int) -> None:
        super().__init__(failures, published)
        # A text if a result backend wrote it as JSON.
        known = [] if isinstance(failures, str) else failures
        self.failures = [PublishFailure(*failure) for failure in known]
        self.published = published

    def __str__(self) -> str:
        if isinstance(self.args[0], str):
            return self.args[0]
        shown = "; ".join(
            f"{failure.task_id}: {failure.reason}" for failure in self.failures[:FAILURES_SHOWN]
        )
        more = len(self.failures) - FAILURES_SHOWN
        beyond = f"; and {more} more, see `failures`" if more > 0 else ""
        return f"{len(self.failures)} of {self.published} messages could not be sent: {shown}{beyond}"


class UnroutableError(SQSVisibilityError, KombuError):
    """SQS has no such type of exchange, or no queue is bound to it."""


class RemoteControlError(SQSVisibilityError):
    """Remote control is off here, so workers cannot be asked; the message says what to set.

    In a task such a call gets no replies instead.
    """


class CommandNotSentError(RemoteControlError):
    """SQS did not accept a command to workers for some seconds. The message says why. Try again."""


class UnreadableError(SQSVisibilityError):
    """A message is not a task; the text says why."""


class TooLargeError(SQSVisibilityError, ValueError):
    """A body is larger than allowed when decompressed or fetched."""


class InvalidIdError(SQSVisibilityError, ValueError):
    """A message was not published: SQS refuses its group, or workers would refuse its task id."""


class ETATooFarError(SQSVisibilityError, ValueError):
    """A message was not published: SQS would delete it before its ETA or the end of its delay."""


class VisibilityLostError(SQSVisibilityError):
    """A message's visibility has lapsed: another worker may have it."""


class InactivityError(SQSVisibilityError):
    """A run gave no sign of life for its task's `inactivity_timeout`."""

    @classmethod
    def after(cls, timeout: float) -> InactivityError:
        """The error after `timeout` seconds without a sign of life."""
        return cls(f"no sign of life for {timeout:g} s (inactivity_timeout)")


class StoreError(SQSVisibilityError):
    """The store of exclusive tasks does not answer, or refuses a request; the message says which."""


class StoreUnavailableError(StoreError):
    """The store of exclusive tasks cannot be reached, or did not answer in time."""


class ExclusiveKeyError(SQSVisibilityError, ValueError):
    """A task's `exclusive` makes no key from its arguments."""


class SQSError(SQSVisibilityError):
    """A request to SQS or S3 failed. Each subclass has its own remedy.

    Args:
        message: a sentence for people.
        code: the error code of SQS or the name of botocore's exception, for example `"RequestThrottled"`.
        action: the API action, for example `"ReceiveMessage"`.
    """

    def __init__(self, message: str, *, code: str = "", action: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.action = action


class UnavailableError(SQSError):
    """Network failure, timeout or 5xx: try again, with backoff."""


class AnswerLostError(UnavailableError):
    """The answer to a request was lost: it may have been carried out."""


class UnreachableError(UnavailableError, ConnectionError):
    """SQS's endpoint, or the proxy before it, accepts no connections: try again, with backoff."""


class TLSError(UnavailableError):
    """The certificate is not trusted, or the endpoint does not speak TLS: try again, and log it."""


class ThrottledError(SQSError):
    """SQS or KMS throttles: try again, with backoff."""


class OverLimitError(SQSError):
    """Too many messages in flight in this queue: wait until some are settled."""


class UnrecognizedResponseError(SQSError):
    """A refusal without a code, from a proxy, a gateway or a wrong endpoint: try again, and log it."""


class CredentialsRefusedError(SQSError):
    """Credentials are missing, expired or wrong: look them up again, then try again."""


class ClockSkewError(CredentialsRefusedError):
    """This machine's clock is too far off for signatures: try again, and log it."""


class RefusedError(SQSError, OperationalError):
    """SQS refused, and will again: retrying at once does not help.

    kombu raises OperationalError after its last retry, so Celery's users expect that class of `delay()`.
    """


class AccessDeniedError(RefusedError):
    """The credentials lack a permission: try again slowly, and log it."""


class QueueDoesNotExistError(RefusedError):
    """No queue has that name or URL, or its owner hides it."""


class ReceiptHandleInvalidError(RefusedError):
    """The receipt handle has expired, or the message was deleted or received again."""


class RequestRefusedError(RefusedError):
    """Any other refusal by SQS: the request is wrong, so retrying does not help."""


class MessageTooLargeError(RequestRefusedError):
    """A message is larger than its queue accepts; the text has its size, the limit and the remedy."""


class ObjectDoesNotExistError(RefusedError):
    """S3 has no object with that key."""


#: Errors that pass by themselves.
PASSING_ERRORS = (ThrottledError, UnavailableError, UnrecognizedResponseError, OverLimitError)
