"""The latest keys, each remembered for some time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


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

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: K, now: float, until: float = 0.0) -> bool:
        """Keep a key until the monotonic instant `until`, if that is later than usual; whether it is new."""
        keys = self._keys
        new = key not in keys
        keys[key] = max(now + self._seconds, until)
        keys.move_to_end(key)
        while len(keys) > self._most or next(iter(keys.values())) < now:
            keys.popitem(last=False)
        return new
