"""What a process remembers of messages it no longer holds, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Remembered(Generic[Key]):
    """The latest so many keys. Safe to use from any thread.

    Args:
        most: how many; the oldest are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Guards _keys. Reentrant: Celery's cold shutdown settles in a signal handler, on a thread that may be
        # here just now.
        self._lock = threading.RLock()
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> bool:
        """Remember it; whether it is new."""
        with self._lock:
            new = key not in self._keys
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)
            return new
