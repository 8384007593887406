"""A bounded memory of the latest keys, each kept for a limited time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


class RecentKeys(OrderedDict[K, float]):
    """The latest keys, and the instant until which each is kept. Any thread may use `in`, but not `add`.

    Args:
        most: the number of keys to keep; the oldest make room.
        seconds: how long to keep each key, if there are no more than `most`.
    """

    def __init__(self, most: int, seconds: float = math.inf) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds

    def add(self, key: K, now: float, until: float = 0.0) -> bool:
        """Keep a key, at least until the monotonic instant `until`. Returns whether it is new."""
        new = key not in self
        self[key] = max(now + self._seconds, until)
        if not new:
            self.move_to_end(key)
        while len(self) > self._most or next(iter(self.values())) < now:
            self.popitem(last=False)
        return new
