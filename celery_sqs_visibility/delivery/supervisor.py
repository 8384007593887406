"""Supervisor of a consumer's threads: it replaces those that died or hang, in each part of the consumer."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: From one check to the next.
CHECK_INTERVAL_SECONDS: Final = 0.5

#: After a longer time from one check to the next the process was stopped, or the machine slept.
STOPPED_AFTER_SECONDS: Final = 4 * CHECK_INTERVAL_SECONDS

#: A request that takes longer hangs. Its client gives up on SQS well before, so the thread waits for
#: something that has no timeout: a host name to be resolved, credentials, a lock.
HUNG_AFTER_SECONDS: Final = 20.0


class Supervised(Protocol):
    """Something that has threads."""

    def replace_stuck(self, now: float) -> None:
        """Replace threads that are dead or hang at that monotonic instant. The supervisor's thread."""


class Supervisor:
    """One thread that checks all threads of a consumer, each time those that `supervised` returns."""

    def __init__(self, supervised: Callable[[], Iterable[Supervised]], clock: Clock) -> None:
        self._supervised = supervised
        self._clock = clock
        self._stopped: threading.Event | None = None  # the running thread's own
        self._checked = clock.monotonic()  # the instant of the latest check
        self._stop = -math.inf, -math.inf  # the checks before and after the latest stop of this process

    def start(self) -> None:
        """Start the thread; harmless if it runs. Not thread-safe: the consumer locks.

        Raises:
            RuntimeError: the system refuses a new thread.
        """
        if self._stopped is None:
            stopped = threading.Event()
            self._checked = self._clock.monotonic()
            if start_thread(self._run, "sqs-supervisor", stopped) is None:
                raise RuntimeError("cannot start the thread that supervises the others")
            self._stopped = stopped

    def stop(self) -> None:
        """End the thread; harmless if it does not run. Does not wait. Not thread-safe: the consumer locks."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def late(self, now: float) -> float:
        """For how many seconds a check has been due; 0 where there is no thread. Any thread."""
        return 0.0 if self._stopped is None else max(0.0, now - self._checked - CHECK_INTERVAL_SECONDS)

    def stopped_at(self, since: float, now: float) -> float:
        """When this process was last seen before a stop, if it was stopped between two instants; else `now`.

        Any thread; after a stop it may go on before the supervisor's does. A supervisor that was late at the
        earlier instant already tells nothing.
        """
        checked = self._checked  # before the stop, which is written before
        if self._stopped is not None and since - checked < STOPPED_AFTER_SECONDS <= now - checked:
            return checked
        before, after = self._stop
        return before if after >= since else now

    def check(self, now: float) -> None:
        """Check everything once."""
        for supervised in self._supervised():
            try:
                supervised.replace_stuck(now)
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, "unexpected error while replacing stuck threads; continuing")

    def _run(self, stopped: threading.Event) -> None:
        checked = self._clock.monotonic()
        while not stopped.wait(CHECK_INTERVAL_SECONDS):
            before, checked = checked, self._clock.monotonic()
            # After a SIGSTOP or a sleep of the machine all requests look old; their answers are read first.
            stopped_meanwhile = checked - before >= STOPPED_AFTER_SECONDS
            if stopped_meanwhile:
                self._stop = before, checked
            self._checked = checked  # afterwards: see `stopped_at`
            if not stopped_meanwhile:
                self.check(checked)
