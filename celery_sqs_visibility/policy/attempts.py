"""Attempts of a message, and whether it comes back when a run ends.

The pool's child decides, since it has the exception (`task.tracing`); where the child is gone, the main
process decides with the same function (`worker.visibility_request`). After any other end Celery
acknowledges or rejects the message (celery/worker/request.py).
"""

from __future__ import annotations

import enum
from typing import Final

#: Receives after which an unreadable message is given up, so that its FIFO group goes on: the attempts of a
#: task that says nothing itself (Celery's default for `max_retries` is 3).
RECEIVES_OF_NO_TASK: Final = 4

#: Seconds from its first receive until it is given up where another worker may know its task, as in a
#: rolling deploy.
SECONDS_OF_AN_UNKNOWN_TASK: Final = 3600.0

#: Receives beyond the last attempt at which a message is still run: a release counts as a receive, and a
#: message that was only released must not fail without a run.
RELEASES_FORGIVEN: Final = 3


def attempts_made(receive_count: int, parks: int, published_retries: int) -> int:
    """How many attempts came before this one: Celery's `request.retries`.

    Every receive but the known parks counts as an attempt: a worker that was killed leaves no other trace.
    `published_retries` are those of the header, of Celery's own retries.
    """
    return published_retries + max(0, receive_count - 1 - parks)


def attempts_allowed(
    retries: int, max_retries: int | None, receive_count: int, max_receive_count: int | None
) -> int | None:
    """How many attempts a message has in all, as far as this attempt can tell; `None` is no limit.

    They are `max_retries + 1`, or as many as the queue's `maxReceiveCount` leaves, after which SQS itself
    moves the message to the dead-letter queue.
    """
    limits = [] if max_retries is None else [max_retries + 1]
    if max_receive_count is not None:
        limits.append(retries + 1 + max_receive_count - receive_count)
    return min(limits, default=None)


def is_last_attempt(
    retries: int, max_retries: int | None, receive_count: int, max_receive_count: int | None
) -> bool:
    """Whether a failure now is final: see `attempts_allowed`."""
    allowed = attempts_allowed(retries, max_retries, receive_count, max_receive_count)
    return allowed is not None and retries + 1 >= allowed


def are_spent(retries: int, max_retries: int | None) -> bool:
    """Whether a message has had its attempts, and more receives than are forgiven as releases."""
    return max_retries is not None and retries - max_retries > RELEASES_FORGIVEN


def is_no_task_for_good(receive_count: int, seconds_known: float, *, others_may: bool) -> bool:
    """Whether a FIFO queue's message that is no task is given up, so that its group goes on.

    Args:
        receive_count: of the message.
        seconds_known: since its first receive.
        others_may: whether another worker may know its task.
    """
    shortest = SECONDS_OF_AN_UNKNOWN_TASK if others_may else 0.0
    return receive_count >= RECEIVES_OF_NO_TASK and seconds_known >= shortest


class End(enum.Enum):
    """How a run of a `VisibilityTask` ended that may have to be repeated."""

    FAILED = "the task raised an exception"
    RETRIED = "the task called `self.retry()`, which changes nothing but the time"
    UNDECIDED = "Celery failed outside the task: the result backend, publishing what follows, pickling"
    LOST = "the child is gone, a time limit has passed, or the run has shown no life"


def comes_back_after(end: End, *, retried: bool = True, last: bool = False) -> bool:
    """Whether its message comes back; else it is given up.

    Args:
        end: how the run ended.
        retried: whether the task retries this exception (`autoretry_for`, `dont_autoretry_for`). Matters to
            `FAILED` and `LOST` only: the exception of `UNDECIDED` is not the task's.
        last: whether this was the last attempt.
    """
    return not last and (retried or end not in (End.FAILED, End.LOST))
