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
        sentences: one for each wrong option, where there are several; the message has all.
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
    """Some of what was published in a block was not sent; all the rest was.

    Attributes:
        failures: for each, its task id, the reason and the error.
        published: how many messages there were in all.
    """

    def __init__(self, failures: Sequence[tuple[str | None, Exception]], published: int) -> None:
        super().__init__(failures, published)
        # A text, where a result backend that writes JSON has made one of them.
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
    """The exchange is of a type that SQS cannot have, or no queue is bound to it."""


class RemoteControlError(SQSVisibilityError):
    """Workers cannot be asked, since remote control is off here; the message says what to set.

    A task that asks them gets no replies instead.
    """


class CommandNotSentError(RemoteControlError):
    """A command to workers was not sent: SQS took none for some seconds. The message says why. Try again."""


class UnreadableError(SQSVisibilityError):
    """No task can be made of a message; the text says why."""


class TooLargeError(SQSVisibilityError, ValueError):
    """A body would be larger than allowed when decompressed or fetched."""


class InvalidIdError(SQSVisibilityError, ValueError):
    """A message was not published: SQS refuses its group, or no worker would run a task of that id."""


class ETATooFarError(SQSVisibilityError, ValueError):
    """A message was not published, since SQS would delete it before its ETA, or the end of its delay."""


class VisibilityLostError(SQSVisibilityError):
    """A message's visibility has lapsed: another worker may have it."""


class InactivityError(SQSVisibilityError):
    """A run has shown no life for as long as its task's `inactivity_timeout` allows."""

    @classmethod
    def after(cls, timeout: float) -> InactivityError:
        """The error of a run that was silent for `timeout` seconds."""
        return cls(f"no sign of life for {timeout:g} s (inactivity_timeout)")


class StoreError(SQSVisibilityError):
    """The store of exclusive tasks does not answer, or refuses; the message says which."""


class StoreUnavailableError(StoreError):
    """The store of exclusive tasks gave no answer in time, or cannot be reached."""


class ExclusiveKeyError(SQSVisibilityError, ValueError):
    """The `exclusive` of a task makes no key of its arguments."""


class SQSError(SQSVisibilityError):
    """A request to SQS, or S3, failed. Each subclass calls for another remedy.

    Args:
        message: a sentence for a person.
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
    """No answer came to a request that was sent, or may have been: it may have been carried out."""


class UnreachableError(UnavailableError, ConnectionError):
    """Nobody takes connections at SQS's endpoint, or at the proxy before it: try again, with backoff."""


class TLSError(UnavailableError):
    """The certificate is not trusted, or the endpoint does not speak TLS: try again, and say so."""


class ThrottledError(SQSError):
    """SQS or KMS asks us to slow down: try again, with backoff."""


class OverLimitError(SQSError):
    """Too many messages in flight in this queue: wait until some are settled."""


class UnrecognizedResponseError(SQSError):
    """A refusal without a code, by a proxy, a gateway or a wrong endpoint: try again, and say so."""


class CredentialsRefusedError(SQSError):
    """No credentials, or expired or wrong ones: look for them anew, then try again."""


class ClockSkewError(CredentialsRefusedError):
    """This machine's clock is too far from SQS's for its signatures: try again, and say so."""


class RefusedError(SQSError, OperationalError):
    """SQS has refused, and will again: retrying at once does not help.

    kombu raises OperationalError after its last retry, so Celery's users expect that class of `delay()`.
    """


class AccessDeniedError(RefusedError):
    """The credentials are good, the permission is missing: try again slowly, and say so."""


class QueueDoesNotExistError(RefusedError):
    """No queue has that name or URL, or its owner hides it from us."""


class ReceiptHandleInvalidError(RefusedError):
    """The receipt handle no longer holds the message: deleted, received again, or expired."""


class RequestRefusedError(RefusedError):
    """Any other refusal by SQS: the request is wrong and will stay so."""


class MessageTooLargeError(RequestRefusedError):
    """A message is larger than its queue takes; the text has its size, the limit and what to do."""


class ObjectDoesNotExistError(RefusedError):
    """S3 has no object of that key."""


#: Errors that pass without anybody's help.
PASSING_ERRORS = (ThrottledError, UnavailableError, UnrecognizedResponseError, OverLimitError)
