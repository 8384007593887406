"""The runs that go on when a shutdown's time is up: each is ended by itself, or left where it cannot be.

A process of the pool is killed, and so is a greenlet. A thread cannot be: its run is left, and neither the
pool nor the interpreter waits for it. The main thread of a solo pool is interrupted by a signal, whose
handler raises `WorkerShutdown` in the run; Celery's tracer lets that pass.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.threads import copy_of, start_thread
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.task.chord_end import is_at_end
from celery_sqs_visibility.worker.threaded_runs import RUN_CODE

logger = get_logger(__name__)

#: Its handler interrupts a run on the main thread: see `bootsteps.Endings`.
INTERRUPTING_SIGNAL: Final = getattr(signal, "SIGQUIT", None)


def active_requests() -> list[Any]:
    """The requests of all runs of this process."""
    return copy_of(state.active_requests)


def in_a_thread(act: Callable[[], None]) -> None:
    """Call it in a thread of its own, or here if the system has none: eventlet waits for a greenlet's end."""
    if start_thread(act, "sqs-end-run") is None:
        act()


class LastRuns:
    """The runs of one worker, after the messages of those that could be were handed back.

    The drain's thread.

    Args:
        active: the requests of all runs.
        call: calls what ends a run, which may take long.
    """

    def __init__(
        self,
        active: Callable[[], list[Any]] = active_requests,
        call: Callable[[Callable[[], None]], None] = in_a_thread,
    ) -> None:
        self._active = active
        self._call = call
        self._postponed = False  # whether a run was at its end, and so is ended a moment later
        self._ended: set[int] = set()  # ids of requests, which stay in Celery's state until the process ends
        self.interrupts = False  # whether the main thread's run is to end; signal handlers look at it

    @property
    def any_ended(self) -> bool:
        """Whether a run was ended or left, for which Celery might wait all the same."""
        return bool(self._ended) or self._postponed

    def acknowledged_early(self) -> list[Any]:
        """The requests of runs whose messages were deleted when they began, and that nobody has ended."""
        waited_for = [each for each in self._active() if id(each) not in self._ended]
        return [each for each in waited_for if _is_acknowledged_early(each)]

    def late(self) -> list[Any]:
        """The requests of runs whose messages are held until their end, or were lost meanwhile."""
        return [each for each in self._active() if not _is_acknowledged_early(each)]

    def end_late(self) -> None:
        """End all `late` ones: their messages are other workers' now.

        Again, it ends those that began since, and interrupts the main thread again.
        """
        for request in self.late():
            self._end(request)
        if self.interrupts:
            _interrupt_main_thread()

    def lose_early(self) -> None:
        """End the others, too: nobody will run them again."""
        for request in self.acknowledged_early():
            fields = Fields(task=request.name, task_id=request.id)
            log_safely(
                logger.error,
                "shutdown: lost: it was acknowledged when it began, and does not end in time (%s)",
                fields,
                extra={"sqs": fields},
            )
            self._end(request)

    def _end(self, request: Any) -> None:
        if id(request) in self._ended:
            return
        if getattr(request, "publishes_chord", False):
            self._postponed = True
            return
        self._ended.add(id(request))
        if getattr(request, "is_on_main_thread", False):
            self.interrupts = True
            _interrupt_main_thread()
        elif (end := getattr(request, "end_in_shutdown", None)) is not None:  # or it is none of ours
            self._call(end)


def may_interrupt(frame: FrameType | None) -> bool:
    """Whether that frame of this thread is of a run in a pool without processes, or called by it.

    Not at its end as a chord's member. In a signal handler.
    """
    if is_at_end(threading.get_ident()):
        return False
    while frame is not None:
        if frame.f_code is RUN_CODE:
            return True
        frame = frame.f_back
    return False


def _is_acknowledged_early(request: Any) -> bool:
    delivery = getattr(request, "delivery", None)
    return delivery is None or delivery.current.acknowledged_early


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if INTERRUPTING_SIGNAL is None or main is None:
        return
    if callable(signal.getsignal(INTERRUPTING_SIGNAL)):  # or the process would be killed
        signal.pthread_kill(main, INTERRUPTING_SIGNAL)
