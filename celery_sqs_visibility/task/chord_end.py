"""The end of a run that is a member of a chord, in which Celery may publish the chord's body.

An exception from outside, such as the `SystemExit` of a SIGTERM, would make Celery mark the body as published
(celery/backends/redis.py: `on_chord_part_return`), and it would never run. So SIGTERM is delayed in a pool's
process, and runs in the worker's own process are not interrupted. A process that is killed marks nothing: its
member is retried.

Some result backends count ends of runs instead of members: see `contacts.app`. With them, a member's first
end is stored beside its result, and a second one is not counted.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any, Final

from celery_sqs_visibility.contacts.app import counts_ends
from celery_sqs_visibility.contacts.pool import POOLS_HANDLER

logger = logging.getLogger(__name__)

UNNOTED: Final = (
    "task %s[%s] was counted for its chord, but not noted as counted: a second run would count again"
)

#: Suffix of the key of a member's result.
COUNTED: Final = "-counted"

#: The threads and greenlets at the end of such a run.
_at_end: set[int] = set()

#: Signals that are delayed, in a pool's process.
_waiting: list[int] = []


def begin() -> None:
    """Note that the end of a run begins. In the run's thread, greenlet or process."""
    _at_end.add(threading.get_ident())
    if signal.getsignal(signal.SIGTERM) is POOLS_HANDLER:
        signal.signal(signal.SIGTERM, _wait)


def end() -> None:
    """Take the signals that waited. In the run's thread. Idempotent."""
    ident = threading.get_ident()
    if ident not in _at_end:
        return
    _at_end.discard(ident)
    if signal.getsignal(signal.SIGTERM) is _wait:
        signal.signal(signal.SIGTERM, POOLS_HANDLER)
        if _waiting:
            _waiting.clear()
            signal.raise_signal(signal.SIGTERM)


def _wait(number: int, _frame: object) -> None:
    _waiting.append(number)


def count_once(task: Any, request: Any) -> None:
    """Hide the chord from Celery if an earlier run of this member was counted."""
    backend = task.backend
    if request.chord and counts_ends(backend) and backend.get(backend.get_key_for_task(request.id, COUNTED)):
        request.chord = None


def note_counted(task: Any, task_id: str) -> None:
    """Store that a member was counted. Errors are logged."""
    backend = task.backend
    try:
        if counts_ends(backend):
            backend.set(backend.get_key_for_task(task_id, COUNTED), "1")
    except Exception:
        logger.exception(UNNOTED, task.name, task_id)


def is_at_end(ident: int | None) -> bool:
    """Returns whether the run of that thread or greenlet may be publishing a chord's body. Any thread."""
    return ident in _at_end
