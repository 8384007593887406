"""Retries of publications: kombu's, as the retry policy says, and ours at the end of a task's run.

After the task's own code Celery publishes the next step of a chain, a link or the body of a chord. To give up
on it costs more than to wait: the run is repeated, and a chord is lost, since Celery's backends then fail its
body and forget the results of its members (celery/backends/base.py: `on_chord_part_return`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import ref

from celery_sqs_visibility.aws.attempts import attempt, pauses_until
from celery_sqs_visibility.errors import PASSING_ERRORS, CredentialsRefusedError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: kombu publishes again after these: errors that pass, and refused credentials, which rotation may replace.
RETRIED_ERRORS: Final = (*PASSING_ERRORS, CredentialsRefusedError)

#: Well within the time for which Celery keeps others from publishing the body of a chord.
END_OF_RUN_SECONDS: Final = 10.0

#: The monotonic instant until which this thread or greenlet sends a publication again.
_deadline: ContextVar[float] = ContextVar("celery_sqs_visibility.publish_retries", default=0.0)

T = TypeVar("T")


def set_deadline() -> None:
    """The task's own code has ended: what is published from now on belongs to the end of its run."""
    _deadline.set(SYSTEM_CLOCK.monotonic() + END_OF_RUN_SECONDS)


def clear_deadline() -> None:
    """The run has ended."""
    _deadline.set(0.0)


def until_deadline(request: Callable[[], T]) -> T:
    """Call `request`, again until the deadline while its error passes by itself. The publishing thread."""
    deadline = _deadline.get()
    return attempt(request, PASSING_ERRORS, pauses_until(deadline, SYSTEM_CLOCK)) if deadline else request()


class PublishAttempts:
    """The attempts of one kombu Connection to publish: a context around each, or around a part of one.

    One thread at a time uses them. They are not the Transport's, since kombu makes a new one, with new
    channels, before each retry.
    """

    #: How many in a row failed with one of `RETRIED_ERRORS`; none once kombu gives the publication up.
    failed = 0

    def __init__(self, connection: Any = None) -> None:
        self._connection = None if connection is None else ref(connection)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RETRIED_ERRORS):
            self.failed += 1
            connection = None if self._connection is None else self._connection()
            policy = {} if connection is None else connection.transport_options  # with this publication's
            most = policy.get("max_retries")
            if most is not None and self.failed > most:
                self.failed = 0
