"""Until when a publication that fails for a reason that passes is sent again, whatever its retry policy says.

At the end of a run, after the task's own code, the next step of a chain, a link or the body of a chord is
published. To give up on it costs more than to wait: the run has to be repeated, and a chord is lost, since
Celery's backends then fail its body and forget the results of its members (celery/backends/base.py:
`on_chord_part_return`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from celery_sqs_visibility.errors import PASSING_ERRORS
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: Seconds, well within those for which Celery keeps others from publishing the body of a chord.
PUBLISH_SECONDS = 10.0

#: The monotonic instant until which what is published now, in this thread or greenlet, is sent again.
_deadline: ContextVar[float] = ContextVar("celery_sqs_visibility.transport.publish_deadline", default=0.0)

T = TypeVar("T")


def begin() -> None:
    """The task's own code has ended: what is published from now on belongs to the end of its run."""
    _deadline.set(SYSTEM_CLOCK.monotonic() + PUBLISH_SECONDS)


def end() -> None:
    """The run has ended."""
    _deadline.set(0.0)


def send(attempt: Callable[[], T]) -> T:
    """Call `attempt`, again until the deadline while its error passes by itself. The publishing thread."""
    failures = 0
    while True:
        try:
            return attempt()
        except PASSING_ERRORS:
            if SYSTEM_CLOCK.monotonic() >= _deadline.get():
                raise
            failures += 1
            threading.Event().wait(pause(failures))
