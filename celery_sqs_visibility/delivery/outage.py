"""What keeps SQS from doing one kind of thing, told in a line when it begins and a line when it is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

#: Trouble that comes back within that many seconds is over only when it stayed away for as long: where every
#: second request fails, that is no change of state.
STEADY = 10.0


class Outage:
    """Begins with a failure, ends with a success. Safe to call from any thread.

    Args:
        logger: where the lines go.
        cannot: what does not work, as in "cannot delete messages".
        works: that it does, as in "deletes messages".
        queue: which queue it is about.
        clock: the monotonic clock.
    """

    def __init__(self, logger: logging.Logger, cannot: str, works: str, queue: str, clock: Clock) -> None:
        self._logger = logger
        self._cannot = cannot
        self._works = works
        self._extra = {"queue": queue, "sqs": Fields(queue=queue)}
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._kinds: set[type[SQSError]] = set()  # told since it began; empty: no trouble
        self.error: SQSError | None = None  # the latest, while there is trouble; for who tells of its results
        self._failures = 0
        self._began_at = 0.0
        self._failed_at = 0.0
        self._over_at: float | None = None
        self._relapse = False

    def failed(self, error: SQSError) -> None:
        """A request failed. A line if it is the first, or the first of its kind since the trouble began."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._kinds:
                self._began_at = now
                self._relapse = self._over_at is not None and now - self._over_at < STEADY
            self._failures += 1
            self.error = error
            self._failed_at = now
            news = type(error) not in self._kinds
            self._kinds.add(type(error))
        if news:
            self._tell(
                self._logger.error, "%s and will try again: %s (%s)", self._cannot, error, self._extra["sqs"]
            )

    def worked(self, since: float) -> None:
        """A request worked that was made at that monotonic instant. A line if there was trouble: it is over.

        What was made before the trouble began tells nothing of its end, however late the answer came.
        """
        if not self._kinds:
            return
        with self._lock:
            now = self._clock.monotonic()
            if not self._kinds or since < self._began_at:
                return
            if self._relapse and now - self._failed_at < STEADY:
                return
            failures, self._failures = self._failures, 0
            self._kinds.clear()
            self.error = None
            self._over_at = now
        self._tell(
            self._logger.warning,
            "%s again, after %d failures (%s)",
            self._works,
            failures,
            self._extra["sqs"],
        )

    def _tell(self, log: Callable[..., object], sentence: str, *args: object) -> None:
        log_safely(log, sentence, *args, extra=self._extra)
