"""Samples of the queues' depths, taken by one worker of a fleet where a store can elect it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.operate.found_queues import QueueDepth
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Labels, Series
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore

logger = logging.getLogger(__name__)

#: A sample is exported for this many intervals; after that the figures are unknown.
VALID_INTERVALS: Final = 2.5

#: A turn lasts this many intervals, and is renewed at each: a worker may miss one.
TURN_INTERVALS: Final = 2.5

#: After how many intervals the others ask whether it is free: at random, so that they ask one by one.
LOOK_INTERVALS: Final = (3.0, 7.0)


class Turn:
    """This worker's share in the turn. One thread.

    Args:
        store: where workers agree; `None`: each is on its own, and always has the turn.
        key: tells what the turn is for, each time that it is asked for.
        owner: this worker, by a name that no other has.
        interval: seconds after which the turn is asked for again.
        clock: the monotonic clock.
        uniform: a random number between two.
    """

    def __init__(
        self,
        store: ExclusiveStore | None,
        key: Callable[[], str],
        owner: str,
        interval: float,
        clock: Clock = SYSTEM_CLOCK,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._key_now = key
        self._key = ""  # the latest
        self._owner = owner
        self._interval = interval
        self._clock = clock
        self._uniform = uniform
        self._look_at = 0.0  # the monotonic instant before which another worker has it
        self._failed = False
        self._has_it = False

    def is_mine(self) -> bool:
        """Whether it is this worker's turn; a request to the store, unless another had it just now."""
        if self._store is None:
            return True
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._has_it = self._acquire(self._store)
        if not self._has_it:
            self._look_at = now + self._interval * self._uniform(*LOOK_INTERVALS)
        return self._has_it

    def end(self) -> None:
        """Leave it to others at once, if it is this worker's."""
        if self._store is not None and self._has_it:
            try:
                self._store.release(self._key, self._owner)
            except StoreError as error:
                log_safely(logger.debug, "the turn ends by itself, since it cannot be released: %s", error)

    def _acquire(self, store: ExclusiveStore) -> bool:
        self._key = self._key_now()
        try:
            taken = isinstance(
                store.acquire(self._key, self._owner, TURN_INTERVALS * self._interval), Acquired
            )
        except StoreError as error:
            if not self._failed:
                sentence = "workers cannot agree on one that counts the queues, which are not counted: %s"
                log_safely(logger.warning, sentence, error)
            self._failed = True
            return False
        self._failed = False
        return taken


class Sampler:
    """Samples the queues when it is this worker's turn. `sample` belongs to one thread, the rest to any.

    Args:
        ask: tells the depths of the worker's queues, by requests.
        turn: tells whether this worker asks.
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
        """Add the samples to the series, as gauges; an unknown figure has no value."""
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
