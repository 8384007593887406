"""What becomes of a message when the run of its task ends: one decision, for every way to end.

The pool's child decides, since it has the exception (`task.tracing`); where the child is gone, the main
process decides with the same function (`worker.visibility_request`). They ask about FAILED, RETRIED,
UNDECIDED and LOST. The other ends are Celery's own (celery/worker/request.py); tests compare them with this
table.
"""

from __future__ import annotations

import enum


class End(enum.Enum):
    """How a run of a `VisibilityTask` ended, or why there was none."""

    SUCCEEDED = "the task returned, and Celery stored its result"
    FAILED = "the task raised an exception"
    RETRIED = "the task called `self.retry()`, which changes nothing but the time"
    PUBLISHED = (
        "the task published its successor: `self.retry()` with changes, `self.replace()`, `continue_later()`"
    )
    UNDECIDED = "Celery failed outside the task: the result backend, publishing what follows, pickling"
    LOST = "the child is gone, a time limit has passed, or the run has shown no life"
    IGNORED = "the task raised `Ignore`"
    RELEASED = "the task raised `Reject(requeue=True)`, or called `self.visibility.release()`"
    REJECTED = "the task raised `Reject(requeue=False)`"
    REVOKED = "the task was revoked, or has expired"


class Fate(enum.Enum):
    """What becomes of the message."""

    DELETE = "deleted"
    #: Hidden for a delay, then received again.
    COME_BACK = "comes back"
    #: Visible again at once.
    RELEASE = "released"
    #: Moved to the dead-letter queue; without one, deleted or kept as `on_exhausted` says.
    GIVE_UP = "given up"


#: Ends for which neither attempts nor the exception matter.
_FIXED = {
    End.SUCCEEDED: Fate.DELETE,
    End.PUBLISHED: Fate.DELETE,
    End.IGNORED: Fate.DELETE,
    End.REVOKED: Fate.DELETE,
    End.RELEASED: Fate.RELEASE,
    End.REJECTED: Fate.GIVE_UP,
}


def fate_of(end: End, *, retried: bool = True, last: bool = False) -> Fate:
    """Decide what becomes of a message.

    Args:
        end: how the run ended.
        retried: whether the task retries this exception (`autoretry_for`, `dont_autoretry_for`). Matters to
            `FAILED` and `LOST` only: the exception of `UNDECIDED` is not the task's.
        last: whether this was the last attempt.
    """
    if end in _FIXED:
        return _FIXED[end]
    final = last or (not retried and end in (End.FAILED, End.LOST))
    return Fate.GIVE_UP if final else Fate.COME_BACK
