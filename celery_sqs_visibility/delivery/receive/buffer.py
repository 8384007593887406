"""From the receivers' threads to the one thread that hands messages to Celery, in order, with one wake-up."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.clock import Clock

#: Seconds that messages are handed over before the event loop has a turn.
TURN = 0.01


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A delivery, the kombu payload made of its message, and how to hand it over on the main thread.

    `dispatch` is told whether an exception of the consumer is to be raised; otherwise it is logged.
    """

    delivery: Delivery
    payload: dict[str, Any]
    dispatch: Callable[[BufferedMessage, bool], None]


class Buffer:
    """A queue of parcels that a thread can wait for, or that wakes an event loop through a pipe."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()  # guards _parcels, _woken
        self._parcels: deque[BufferedMessage] = deque()
        self._pipe: tuple[int, int] | None = None
        self._woken = False

    def __len__(self) -> int:
        return len(self._parcels)

    def put(self, buffered_messages: Sequence[BufferedMessage]) -> None:
        """Add them, in order, and wake the reader. Receivers' threads."""
        if buffered_messages:
            with self._arrived:
                self._parcels.extend(buffered_messages)
                self._arrived.notify_all()
                self._wake()

    def get(self) -> BufferedMessage | None:
        """The next one, or `None`. The reader's thread."""
        with self._arrived:
            return self._parcels.popleft() if self._parcels else None

    def wait(self, timeout: float | None) -> bool:
        """Wait for a parcel; whether there is one. The reader's thread, where there is no event loop."""
        with self._arrived:
            return self._arrived.wait_for(self._parcels.__len__, timeout) > 0

    def dispatch(self, clock: Clock, *, raising: bool = False) -> int:
        """Hand over what has arrived, in order, for a moment; how many. The reader's thread.

        Args:
            clock: time.
            raising: whether an exception of a consumer ends it; what has not been handed over stays here.
        """
        until = clock.monotonic() + TURN
        handed = 0
        try:
            while clock.monotonic() <= until and (buffered := self.get()) is not None:
                buffered.dispatch(buffered, raising)
                handed += 1
        finally:
            if self._parcels:
                self.wake()
        return handed

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        """Take out what is wanted, to be given back. Any thread."""
        with self._arrived:
            taken = [buffered for buffered in self._parcels if wanted(buffered)]
            self._parcels = deque(buffered for buffered in self._parcels if not wanted(buffered))
            return taken

    def fileno(self) -> int:
        """A descriptor that is readable when parcels have arrived, for an event loop."""
        with self._arrived:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                if self._parcels:
                    self._wake()
            return self._pipe[0]

    def wake(self) -> None:
        """Make `fileno()` readable again: the reader stopped before the buffer was empty."""
        with self._arrived:
            self._wake()

    def woken(self) -> None:
        """The event loop saw the wake-up; whatever arrives from now on wakes it anew."""
        with self._arrived:
            self._woken = False
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 64)

    def close(self) -> None:
        """Close the pipe, which the event loop no longer watches; the buffer can still be used."""
        with self._arrived:
            if self._pipe is not None:
                for end in self._pipe:
                    os.close(end)
                self._pipe = None
                self._woken = False

    def _wake(self) -> None:
        if self._pipe is not None and not self._woken:
            self._woken = True
            # A full pipe is a woken reader.
            with suppress(BlockingIOError):
                os.write(self._pipe[1], b"\0")
