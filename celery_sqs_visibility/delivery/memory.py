"""What a process remembers of messages it no longer holds, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict


class Remembered:
    """The latest so many keys. Safe to use from any thread.

    Args:
        most: how many; the oldest are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()  # guards _keys
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> bool:
        """Remember it; whether it is new."""
        with self._lock:
            new = key not in self._keys
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)
            return new
