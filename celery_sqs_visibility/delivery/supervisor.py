"""Supervisor of a consumer: makes each part check, twice a second, for what hangs, died or was forgotten."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import log_safely

logger = logging.getLogger(__name__)

#: Time between two checks.
CHECK_INTERVAL_SECONDS: Final = 0.5

#: If more time passes between two checks, the process was stopped, or the machine slept.
STOPPED_AFTER_SECONDS: Final = 4 * CHECK_INTERVAL_SECONDS


class Supervised(Protocol):
    """A part that the supervisor checks."""

    def replace_stuck(self, now: float) -> None:
        """Replace threads that died or hang at that monotonic instant. The supervisor's thread."""


class Supervisor:
    """Checks the parts of a consumer that `supervised` returns. The work of its lane.

    Attributes:
        lane: runs one check at a time, so a check that hangs is not repeated.
        running: whether checks are made. The pump's lock guards all fields.
    """

    def __init__(self, supervised: Callable[[], Iterable[Supervised]], pump: Pump) -> None:
        self._supervised = supervised
        self._now = pump.now
        self.lane: Lane[tuple[float]] = pump.lane("looks for threads that hang", 1, self, math.inf)
        self.running = False
        self._checked = pump.now()  # the instant of the last check
        self._stop = -math.inf, -math.inf  # the checks before and after a stop

    def start(self) -> bool:
        """Start to check. Returns `False` if it was started before.

        Raises:
            RuntimeError: the system refuses a new thread.
        """
        with self.lane.lock:
            if self.running:
                return False
            if not self.lane.has_thread():
                raise RuntimeError("cannot start a thread that looks after the others")
            self.running, self._checked = True, self._now()
        self.lane.start()
        return True

    def late(self, now: float) -> float:
        """For how many seconds a check has been due; 0 while it is not running. Any thread."""
        return max(0.0, now - self._checked - CHECK_INTERVAL_SECONDS) if self.running else 0.0

    def stopped_at(self, since: float, now: float) -> float:
        """When this process was last seen running, if it was stopped between two instants; otherwise `now`.

        Any thread; after a stop, it may go on before the supervisor's thread does. Also returns `now` if the
        supervisor was already late at `since`.
        """
        checked = self._checked  # read before `_stop`, which is written first
        if self.running and since - checked < STOPPED_AFTER_SECONDS <= now - checked:
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

    def due(self, now: float) -> float | None:  # noqa: ARG002 - as `pump.Work`
        return self._checked + CHECK_INTERVAL_SECONDS if self.running else None

    def ready(self) -> int:
        return 1

    def take(self, now: float) -> tuple[float] | None:
        """Take the instant of a check that is due.

        The first check after a SIGSTOP or a sleep of the machine is skipped: all requests look old until
        their answers are read.
        """
        if (due := self.due(now)) is None or due > now:
            return None
        stopped_meanwhile = now - self._checked >= STOPPED_AFTER_SECONDS
        if stopped_meanwhile:
            self._stop = self._checked, now
        self._checked = now  # after `_stop`: `stopped_at` reads them in the other order
        return None if stopped_meanwhile else (now,)

    def send(self, batch: tuple[float], _since: float) -> BatchResult:
        """Check, without a request."""
        self.check(batch[0])
        return BatchResult({})

    def conclude(self, _batch: tuple[float], _since: float, _failed: Mapping[int, SQSError]) -> None: ...
