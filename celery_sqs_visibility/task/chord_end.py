"""End of a run that is a chord's member, in which Celery may publish the chord's body.

After an exception from outside, such as the `SystemExit` of a SIGTERM, Celery would note that the body was
published (celery/backends/redis.py: `on_chord_part_return`), and it would never run. So SIGTERM waits in a
pool's process, and runs in the worker's own process are not interrupted. A process that is killed notes
nothing: its member comes back.

Some result backends count the ends of runs, and not the members that have ended: see `contacts.app`. There it
is noted beside a member's result that it was counted, and a second run of it is not counted.
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

#: Follows the key of a member's result.
COUNTED: Final = "-counted"

#: The threads and greenlets that are at such an end.
_at_end: set[int] = set()

#: Signals that wait for it, in a pool's process.
_waiting: list[int] = []


def begin() -> None:
    """The task's own code is over. In the thread, greenlet or process of the run."""
    _at_end.add(threading.get_ident())
    if signal.getsignal(signal.SIGTERM) is POOLS_HANDLER:
        signal.signal(signal.SIGTERM, _wait)


def end() -> None:
    """The run is over: take the signals that waited. In the same thread; harmless without a beginning."""
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
    """Hide the chord from Celery if an earlier run of this member was counted. Before its end is recorded."""
    backend = task.backend
    if request.chord and counts_ends(backend) and backend.get(backend.get_key_for_task(request.id, COUNTED)):
        request.chord = None


def note_counted(task: Any, task_id: str) -> None:
    """Note that a member was counted, whose end was recorded. Errors are logged."""
    backend = task.backend
    try:
        if counts_ends(backend):
            backend.set(backend.get_key_for_task(task_id, COUNTED), "1")
    except Exception:
        logger.exception(UNNOTED, task.name, task_id)


def is_at_end(ident: int | None) -> bool:
    """Whether the run of that thread or greenlet of this process is at such an end. Any thread."""
    return ident in _at_end
