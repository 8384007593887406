"""The latest keys, each remembered for some time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Keys whose time is over are dropped this often, at most.
DROP_SECONDS: Final = 1.0


class RecentKeys(Generic[K]):
    """The latest keys, each for some time. Not thread-safe, but for asking whether it has a key.

    Args:
        most: keys that are kept; the oldest make room.
        seconds: how long each is kept, while there are no more than `most`.
    """

    def __init__(self, most: int, seconds: float = math.inf) -> None:
        self._most = most
        self._seconds = seconds
        self._keys: OrderedDict[K, float] = OrderedDict()  # until which instant each is kept
        self._drop_at = 0.0

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: K, now: float, until: float = 0.0) -> bool:
        """Keep a key until the monotonic instant `until`, if that is later than usual; whether it is new."""
        keys = self._keys
        new = key not in keys
        keys[key] = max(now + self._seconds, until)
        if not new:
            keys.move_to_end(key)
        if now >= self._drop_at or len(keys) > self._most:
            self._drop(now)
        return new

    def _drop(self, now: float) -> None:
        self._drop_at = now + DROP_SECONDS
        keys = self._keys
        while keys and (len(keys) > self._most or next(iter(keys.values())) < now):
            keys.popitem(last=False)
