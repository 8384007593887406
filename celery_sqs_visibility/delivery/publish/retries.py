"""Retries of publications: kombu's, by the retry policy, and ours at the end of a task's run.

After the task's own code Celery publishes the next step of a chain, a link or the body of a chord. Giving up
is worse than waiting: the run is repeated, and a chord is lost, because Celery's backends then fail its body
and forget the results of its members (celery/backends/base.py: `on_chord_part_return`).
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

#: kombu retries after these: errors that pass, and refused credentials, which rotation may replace.
RETRIED_ERRORS: Final = (*PASSING_ERRORS, CredentialsRefusedError)

#: Well below the time for which Celery keeps others from publishing the body of a chord.
END_OF_RUN_SECONDS: Final = 10.0

#: The monotonic instant until which this thread or greenlet retries a publication.
_deadline: ContextVar[float] = ContextVar("celery_sqs_visibility.publish_retries", default=0.0)

T = TypeVar("T")


def set_deadline() -> None:
    """Note that the task's own code has ended: later publications are the end of its run."""
    _deadline.set(SYSTEM_CLOCK.monotonic() + END_OF_RUN_SECONDS)


def clear_deadline() -> None:
    """Note that the run has ended."""
    _deadline.set(0.0)


def until_deadline(request: Callable[[], T]) -> T:
    """Call `request`, and retry it until the deadline if its error may pass. The publishing thread."""
    deadline = _deadline.get()
    return attempt(request, PASSING_ERRORS, pauses_until(deadline, SYSTEM_CLOCK)) if deadline else request()


class PublishAttempts:
    """Counts one kombu Connection's attempts to publish: a context manager around each, or a part of it.

    Used by one thread at a time. It can't be kept in the Transport, because kombu creates a new one, with new
    channels, before each retry.
    """

    #: How many attempts in a row failed with one of `RETRIED_ERRORS`; 0 once kombu gives up.
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
            policy = {} if connection is None else connection.transport_options  # this publication's included
            most = policy.get("max_retries")
            if most is not None and self.failed > most:
                self.failed = 0
