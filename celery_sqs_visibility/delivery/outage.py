"""Outages of one kind of request: a log line when an outage begins, and one when it ends."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.errors import AnswerLostError, SQSError, UnavailableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

#: An outage that returns within this time ends only after as long without a failure: if every second request
#: fails, a success changes nothing.
STEADY_SECONDS = 10.0


class Outage:
    """An outage begins with a failure and ends with a success. Any thread.

    Args:
        logger: gets the lines.
        action: what fails, as in "delete messages".
        queue: the queue's name.
        clock: the monotonic clock.
        kind: what the log calls it, if it isn't a queue.

    Attributes:
        error: the latest error of an outage; `None` while there is none.
    """

    def __init__(
        self, logger: logging.Logger, action: str, queue: str, clock: Clock, *, kind: str = "queue"
    ) -> None:
        self._logger = logger
        self._action = action
        self._facts = {kind: queue}
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self.error: SQSError | None = None
        self._kinds: set[type[SQSError]] = set()  # those that were logged
        self._failures = 0
        self._began_at = self._failed_at = self._ended_at = -math.inf
        self._returned = False  # soon after the one before

    def failure(self, error: SQSError) -> None:
        """Note that a request failed. The first error of each kind is logged in an outage."""
        with self._lock:
            now = self._clock.monotonic()
            if self.error is None:
                self._kinds, self._failures, self._began_at = set(), 0, now
                self._returned = now - self._ended_at < STEADY_SECONDS
            self.error = error
            self._failures += 1
            self._failed_at = now
            # No answer is one kind, whether the request went out or not.
            kind = UnavailableError if isinstance(error, AnswerLostError) else type(error)
            new = kind not in self._kinds
            self._kinds.add(kind)
        if new:
            self._log(self._logger.error, "cannot %s: %s; trying again (%s)", error)

    def success(self, since: float) -> None:
        """Note that a request made at the monotonic instant `since` worked. Logs the end of an outage.

        A request made before the outage began does not end it, however late its answer comes.
        """
        if self.error is None:
            return
        with self._lock:
            now = self._clock.monotonic()
            unsteady = self._returned and now - self._failed_at < STEADY_SECONDS
            if self.error is None or since < self._began_at or unsteady:
                return
            self.error, self._ended_at = None, now
            seconds, failures = now - self._began_at, self._failures
        self._log(self._logger.warning, "can %s again after %.0f s (%s)", seconds, failures=failures)

    def _log(self, log: Callable[..., object], sentence: str, detail: object, **more: object) -> None:
        facts = Fields({**self._facts, **more})
        log_safely(log, sentence, self._action, detail, facts, extra={"sqs": facts})
