"""Counts the messages of queues now and then, for gauges and for CloudWatch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Labels, Series
from celery_sqs_visibility.operate.metrics.turn import Turn
from celery_sqs_visibility.operate.queue_depths import QueueDepth
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: For how many intervals a sample is told: after that, nobody knows.
VALID_INTERVALS: Final = 2.5


class Sampler:
    """Samples the queues when it is this worker's turn. `sample` belongs to one thread, the rest to any.

    Args:
        ask: tells the depths of the worker's queues, by requests.
        turn: whether this worker asks.
        interval: seconds from one sample to the next.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[], list[QueueDepth]],
        turn: Turn,
        interval: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._ask = ask
        self._turn = turn
        self._valid_seconds = VALID_INTERVALS * interval
        self._clock = clock
        self._sample: tuple[float, list[QueueDepth]] = (0.0, [])  # until a monotonic instant; replaced whole
        self._told: set[str] = set()

    def sample(self) -> None:
        """Ask, if it is this worker's turn."""
        if not self._turn.is_mine():
            return
        depths = self._ask()
        self._sample = self._clock.monotonic() + self._valid_seconds, depths
        for error in {str(depth.error) for depth in depths if depth.error is not None} - self._told:
            self._told.add(error)
            log_safely(logger.warning, "metrics of queues lack figures, and go on without: %s", error)

    def end(self) -> None:
        """Leave it to other workers."""
        self._turn.end()

    @property
    def depths(self) -> list[QueueDepth]:
        """The last sample, unless it is too old, or another worker's."""
        valid_until, depths = self._sample
        return depths if self._clock.monotonic() < valid_until else []

    def show(self, series: Series) -> None:
        """Have the series tell them; of an unknown figure nothing."""
        series.gauges[names.QUEUE_MESSAGES] = self._messages
        series.gauges[names.OLDEST_AGE] = lambda: self._known(lambda depth: depth.oldest_age_seconds)
        series.gauges[names.DEAD_LETTERS] = lambda: self._known(lambda depth: depth.dead_letters)

    def _messages(self) -> list[tuple[Labels, float]]:
        return [
            ((depth.queue, state), number)
            for depth in self.depths
            for state in ("visible", "in_flight", "delayed")
            if (number := getattr(depth, state)) is not None
        ]

    def _known(self, figure: Callable[[QueueDepth], float | None]) -> list[tuple[Labels, float]]:
        figures = [(depth.queue, figure(depth)) for depth in self.depths]
        return [((queue,), value) for queue, value in figures if value is not None]
