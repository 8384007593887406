"""A thread for what is done once in a while."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Final

from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: How long `stop` waits for the thread, which may be at a request.
STOP_SECONDS: Final = 1.0

#: A job is done within so many seconds of the start, however long its interval.
FIRST_SECONDS: Final = 60.0

#: What to do, and after how many seconds again.
Job = tuple[Callable[[], None], float]


def next_time(now: float, interval: float, phase: float) -> float:
    """The instant after `now` at which an interval begins, `phase` (0 to 1) of it after the clock's.

    Thus each interval of the clock has one, in each of many workers, which do not all do it at once.
    """
    begun = math.floor(now / interval - phase)
    at = (begun + 1 + phase) * interval
    return at if at > now else at + interval  # at such an instant, a quotient may be rounded down


class Periodic:
    """Does jobs, one after the other, from `start` to `stop`; then calls `end`. Main thread."""

    def __init__(
        self, jobs: Sequence[Job], end: Callable[[], None] = lambda: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._jobs = jobs
        self._end = end
        self._clock = clock
        self._phase = random.random()  # noqa: S311 - nobody's secret
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = start_thread(self._run, "sqs-metrics")
        if self._thread is None:
            logger.error("the thread that counts queues for metrics could not be started")

    def stop(self) -> None:
        """End soon; harmless if it has ended."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        due = [self._next(min(interval, FIRST_SECONDS)) for _, interval in self._jobs]
        while not self._stopped.wait(max(0.0, min(due) - self._clock.monotonic())):
            for number, (act, interval) in enumerate(self._jobs):
                if due[number] <= self._clock.monotonic():
                    _guarded(act)
                    due[number] = self._next(interval)
        _guarded(self._end)

    def _next(self, interval: float) -> float:
        return next_time(self._clock.monotonic(), interval, self._phase)


def _guarded(act: Callable[[], None]) -> None:
    try:
        act()
    except Exception:  # noqa: BLE001 - logged, if that works
        log_safely(logger.exception, "unexpected error with metrics; continuing")
