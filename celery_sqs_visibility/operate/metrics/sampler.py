"""Samples of the queues' depths, taken by one worker of a fleet if there is a store to elect it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Labels, Series
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore

logger = logging.getLogger(__name__)

#: A sample is exported for this many intervals; after that the figures are unknown.
VALID_INTERVALS: Final = 2.5

#: The leader's key lasts for this many intervals, and is renewed at each, so a worker may miss one.
LEADER_INTERVALS: Final = 2.5

#: The others try to become the leader after a random number of intervals in this range, one by one.
FOLLOWER_INTERVALS: Final = (3.0, 7.0)


class Leadership:
    """Elects one worker of a fleet to ask SQS for all of them. One thread.

    Args:
        store: where workers agree; without one each worker is a leader.
        key: returns the current key of the election.
        owner: a name that no other worker has.
        interval: seconds after which the key is renewed.
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
        self._current_key = key
        self._key = ""  # the latest
        self._owner = owner
        self._interval = interval
        self._clock = clock
        self._uniform = uniform
        self._next_attempt = 0.0  # another worker leads until this monotonic instant
        self._failed = False
        self._is_leader = False

    def acquire(self) -> bool:
        """Become or stay the leader. Returns whether this worker is the leader.

        Makes a request to the store, unless another worker was the leader a moment ago.
        """
        if self._store is None:
            return True
        now = self._clock.monotonic()
        if now < self._next_attempt:
            return False
        self._is_leader = self._acquire_key(self._store)
        if not self._is_leader:
            self._next_attempt = now + self._interval * self._uniform(*FOLLOWER_INTERVALS)
        return self._is_leader

    def resign(self) -> None:
        """Let another worker become the leader at once."""
        if self._store is not None and self._is_leader:
            try:
                self._store.release(self._key, self._owner)
            except StoreError as error:
                log_safely(logger.debug, "cannot release the key of the leader, which expires: %s", error)

    def _acquire_key(self, store: ExclusiveStore) -> bool:
        self._key = self._current_key()
        try:
            taken = isinstance(
                store.acquire(self._key, self._owner, LEADER_INTERVALS * self._interval), Acquired
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
    """Samples the queues while this worker is the leader. One thread calls `sample`, any thread the rest."""

    def __init__(
        self,
        ask: Callable[[], list[QueueDepth]],
        leadership: Leadership,
        interval: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._ask = ask
        self._leadership = leadership
        self._valid_seconds = VALID_INTERVALS * interval
        self._clock = clock
        self._sample: tuple[float, list[QueueDepth]] = (0.0, [])  # (valid until, depths); replaced as a whole
        self._told: set[str] = set()

    def sample(self) -> None:
        """Ask SQS, if this worker is the leader."""
        if not self._leadership.acquire():
            return
        depths = self._ask()
        self._sample = self._clock.monotonic() + self._valid_seconds, depths
        for error in {str(depth.error) for depth in depths if depth.error is not None} - self._told:
            self._told.add(error)
            log_safely(logger.warning, "metrics of queues lack figures, and go on without: %s", error)

    @property
    def depths(self) -> list[QueueDepth]:
        """The last sample; empty if it is too old, or another worker takes them."""
        valid_until, depths = self._sample
        return depths if self._clock.monotonic() < valid_until else []

    def show(self, series: Series) -> None:
        """Add the samples to the series, as gauges. An unknown figure has no value."""
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
