"""What a process remembers of messages it no longer holds, within bounds."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

Key = TypeVar("Key", bound=Hashable)


class RecentKeys(Generic[Key]):
    """Keys, each for some time, and at the most the latest so many. Safe to use from any thread.

    Args:
        most: how many; the oldest are forgotten.
        seconds: how long each is remembered at the least, as long as there are no more than that.
        clock: the monotonic clock.
    """

    def __init__(self, most: int, seconds: float = math.inf, clock: Clock = SYSTEM_CLOCK) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        # Guards _keys. Reentrant: Celery's cold shutdown settles in a signal handler, on a thread that may be
        # here just now.
        self._lock = threading.RLock()
        self._keys: OrderedDict[Key, float] = OrderedDict()  # until when each is remembered

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Key, until: float = 0.0) -> bool:
        """Remember it; whether it is new.

        Args:
            key: what to remember.
            until: the monotonic instant until which to, if that is later than usual.
        """
        now = self._clock.monotonic()
        with self._lock:
            new = key not in self._keys
            self._keys[key] = max(until, now + self._seconds)
            self._keys.move_to_end(key)
            while self._keys and (len(self._keys) > self._most or next(iter(self._keys.values())) < now):
                self._keys.popitem(last=False)
            return new
