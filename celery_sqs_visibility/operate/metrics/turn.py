"""Which of several workers does what one is enough for: the one that has a key in their store."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.stores.port import Acquired, ExclusiveStore

logger = logging.getLogger(__name__)

#: For how many intervals a worker that renews its turn each time has it: it may miss one.
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
