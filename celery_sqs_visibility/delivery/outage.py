"""Outages of one kind of request: a log line when an outage begins, and one when it ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.errors import AnswerLostError, SQSError, UnavailableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

#: If an outage follows another within this time, it ends only after as long without a failure: while every
#: second request fails, a success means nothing.
STEADY_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Failing:
    """An outage in progress. Instants are monotonic.

    `returned` is whether it began soon after the one before. `told` has one entry for each kind of error
    logged.
    """

    error: SQSError
    began_at: float
    returned: bool
    failed_at: float = 0.0
    failures: int = 0
    told: dict[type[SQSError], object] = field(default_factory=dict)


class Outage:
    """An outage of one kind of request: begins with a failure, ends with a success. Any thread.

    It needs no lock: an atomic step of a dictionary decides which thread logs a line. Of two simultaneous
    failures one may not be counted.

    Args:
        logger: gets the lines.
        action: what fails, as in "delete messages".
        queue: the queue's name.
        clock: the monotonic clock.
        kind: names the thing in `queue`, if it isn't a queue.

    Attributes:
        under_way: the outage in progress, by its action; empty if there is none.
    """

    def __init__(
        self, logger: logging.Logger, action: str, queue: str, clock: Clock, *, kind: str = "queue"
    ) -> None:
        self._logger = logger
        self._action = action
        self._facts = {kind: queue}
        self._clock = clock
        self.under_way: dict[str, _Failing] = {}
        self._ended_at = -math.inf

    @property
    def error(self) -> SQSError | None:
        """The latest error of the outage in progress; `None` if there is none."""
        failing = self.under_way.get(self._action)
        return None if failing is None else failing.error

    def failure(self, error: SQSError) -> None:
        """Note that a request failed. Logs the first error of each kind in an outage."""
        now = self._clock.monotonic()
        new = _Failing(error, now, now - self._ended_at < STEADY_SECONDS)
        failing = self.under_way.setdefault(self._action, new)
        failing.error, failing.failed_at = error, now
        failing.failures += 1
        # A missing answer is one kind of error, whether or not the request was sent.
        kind = UnavailableError if isinstance(error, AnswerLostError) else type(error)
        if failing.told.setdefault(kind, new) is new:
            self._log(self._logger.error, "cannot %s: %s; trying again (%s)", error)

    def success(self, since: float) -> None:
        """Note that a request made at the monotonic instant `since` succeeded. Logs the end of an outage.

        A request made before the outage began does not end it, however late its answer.
        """
        failing = self.under_way.get(self._action)
        if failing is None or since < failing.began_at:
            return
        now = self._clock.monotonic()
        if failing.returned and now - failing.failed_at < STEADY_SECONDS:
            return
        self._ended_at = now  # first: once this outage has ended, the next may begin at once
        if self.under_way.pop(self._action, None) is failing:
            seconds, failures = now - failing.began_at, failing.failures
            self._log(self._logger.warning, "can %s again after %.0f s (%s)", seconds, failures=failures)

    def _log(self, log: Callable[..., object], sentence: str, detail: object, **more: object) -> None:
        facts = Fields({**self._facts, **more})
        log_safely(log, sentence, self._action, detail, facts, extra={"sqs": facts})


class Outages(dict[tuple[str, str], Outage]):
    """Outages by the kind of request and the queue. Any thread: each access is atomic.

    Empty until a request fails, so that successful requests need not be noted.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        super().__init__()
        self._logger = logger
        self._clock = clock

    def error(self, action: str, queue: str) -> SQSError | None:
        """The latest error of the outage in progress; `None` if there is none."""
        outage = self.get((action, queue))
        return None if outage is None else outage.error

    def note(
        self, action: str, queue: str, error: SQSError | None, since: float, *, worked: bool = True
    ) -> None:
        """Note an error, or that a request made at that monotonic instant succeeded, at least in part."""
        outage = self.get((action, queue))
        if error is not None:
            new = Outage(self._logger, action, queue, self._clock)
            (outage or self.setdefault((action, queue), new)).failure(error)
        elif outage is not None and worked:
            outage.success(since)
