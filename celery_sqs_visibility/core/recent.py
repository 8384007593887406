"""A bounded memory of the latest keys, each kept for a limited time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class RecentKeys(Generic[K]):
    """The latest keys, each kept for some time. Only `in` may be used from any thread.

    Args:
        most: the number of keys to keep; the oldest make room.
        seconds: how long to keep each, while there are no more than `most`.
    """

    def __init__(self, most: int, seconds: float = math.inf) -> None:
        self._most = most
        self._seconds = seconds
        self._keys: OrderedDict[K, float] = OrderedDict()  # the instant until which each is kept

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: K, now: float, until: float = 0.0) -> bool:
        """Keep a key, at least until the monotonic instant `until`. Returns whether it is new."""
        keys = self._keys
        new = key not in keys
        keys[key] = max(now + self._seconds, until)
        keys.move_to_end(key)
        while len(keys) > self._most or next(iter(keys.values())) < now:
            keys.popitem(last=False)
        return new
