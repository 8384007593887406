"""Looks after the threads that look after the messages: what died or hangs is replaced, and that is said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: Seconds from one look to the next.
INTERVAL: Final = 0.5

#: Seconds after which a request that should be over counts as hanging. Its client gives up on SQS well
#: before, so it waits for something that has no timeout: a host name to be resolved, credentials, a lock.
HANGS: Final = 20.0


class Supervised(Protocol):
    """Something that has threads."""

    def replace_stuck(self, now: float) -> None:
        """Replace those that are dead or hang, at that monotonic instant. The supervisor's thread."""
        ...


class Supervisor:
    """One thread that looks after all wards of a consumer.

    Args:
        wards: tells who there is to look after.
        clock: the monotonic clock; where it shows that this process was stopped for a while, nobody hangs.
    """

    def __init__(self, supervised: Callable[[], Iterable[Supervised]], clock: Clock) -> None:
        self._supervised = supervised
        self._clock = clock
        self._stopped: threading.Event | None = None  # the running thread's own

    def start(self) -> None:
        """Start the thread; harmless if it runs. Not thread-safe: the consumer locks."""
        if self._stopped is None:
            self._stopped = threading.Event()
            threading.Thread(
                target=self._run, args=(self._stopped,), name="sqs-supervisor", daemon=True
            ).start()

    def stop(self) -> None:
        """End the thread; harmless if it does not run. Does not wait. Not thread-safe: the consumer locks."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def look(self, now: float) -> None:
        """Look after everybody once."""
        for ward in self._supervised():
            try:
                ward.replace_stuck(now)
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, "supervisor stumbled and goes on")

    def _run(self, stopped: threading.Event) -> None:
        looked = self._clock.monotonic()
        while not stopped.wait(INTERVAL):
            before, looked = looked, self._clock.monotonic()
            # After a SIGSTOP or a sleep of the machine all calls look old; their answers are read first.
            if looked - before < 4 * INTERVAL:
                self.look(looked)
