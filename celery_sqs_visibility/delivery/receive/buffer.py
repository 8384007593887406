"""Buffer between the polling threads and the thread that dispatches messages to Celery, in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from celery_sqs_visibility.policy.clock import Clock

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery

#: Messages are dispatched for this long before the event loop goes on.
DISPATCH_SECONDS: Final = 0.01


class BufferedMessage(NamedTuple):
    """A delivery, the kombu payload made of its message, and how to dispatch it on the main thread.

    `dispatch` is told whether to raise the consumer's exception; otherwise it is logged.
    """

    delivery: Delivery
    payload: dict[str, Any]
    dispatch: Callable[[BufferedMessage, bool], None]


class Line(Protocol):
    """Messages that wait, and which of them goes next. The buffer locks."""

    def __len__(self) -> int:
        """How many wait."""

    def add(self, messages: Sequence[BufferedMessage]) -> None:
        """They have arrived."""

    def next(self) -> BufferedMessage | None:
        """Take the next message; `None` if none may go now."""

    def ready(self) -> bool:
        """Whether one may go now."""

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        """Take out the wanted messages."""


class ArrivalLine:
    """First come, first out."""

    def __init__(self) -> None:
        self._messages: deque[BufferedMessage] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Sequence[BufferedMessage]) -> None:
        self._messages.extend(messages)

    def next(self) -> BufferedMessage | None:
        return self._messages.popleft() if self._messages else None

    def ready(self) -> bool:
        return bool(self._messages)

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        taken = [message for message in self._messages if wanted(message)]
        self._messages = deque(message for message in self._messages if not wanted(message))
        return taken


class Buffer:
    """A line of messages that a thread can wait for, or that wakes an event loop through a pipe.

    Attributes:
        looped_at: the monotonic instant at which the reader's loop last came round.
    """

    def __init__(self, looped_at: float = 0.0) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._arrived = threading.Condition(self._lock)
        self._line: Line = ArrivalLine()
        self._callbacks: deque[Callable[[], bool]] = deque()
        self._pipe: tuple[int, int] | None = None
        self._woken = False
        self.looped_at = looped_at

    def __len__(self) -> int:
        return len(self._line)

    def line_up(self, line: Line) -> None:
        """Keep messages in this line, not in the order of arrival. To be called before any arrives."""
        self._line = line

    def put(self, messages: Sequence[BufferedMessage]) -> None:
        """Add messages, in order, and wake the reader. Polling threads."""
        if messages:
            with self._lock:
                self._line.add(messages)
                self._arrived.notify_all()
                self._wake()

    def put_callback(self, callback: Callable[[], bool]) -> None:
        """Wake the reader, which calls the callback before it takes waiting messages. Any thread.

        The callback returns whether it delivered a message.
        """
        with self._lock:
            self._callbacks.append(callback)
            self._arrived.notify_all()
            self._wake()

    @property
    def callbacks(self) -> int:
        """How many callbacks wait. Any thread."""
        return len(self._callbacks)

    def run_callback(self) -> bool:
        """Call the oldest callback; whether it delivered a message. The reader's thread."""
        with self._lock:
            callback = self._callbacks.popleft() if self._callbacks else None
            if callback is None:
                return False
        try:
            return callback()
        finally:
            self.wake_if_ready()

    def get(self) -> BufferedMessage | None:
        """Take the next message; `None` if none may go now. The reader's thread."""
        with self._lock:
            return self._line.next()

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message or a callback; whether there is one. The reader, without an event loop."""
        with self._lock:
            return self._arrived.wait_for(self._is_ready, timeout)

    def dispatch(self, clock: Clock, *, raising: bool = False) -> int:
        """Dispatch messages, in order, for `DISPATCH_SECONDS`; how many. The reader's thread.

        With `raising` a consumer's exception ends it; the messages after that one stay here.
        """
        until = clock.monotonic() + DISPATCH_SECONDS
        dispatched = 0
        try:
            while clock.monotonic() <= until and (buffered := self.get()) is not None:
                buffered.dispatch(buffered, raising)
                dispatched += 1
        finally:
            self.wake_if_ready()
        return dispatched

    def on_readable(self, clock: Clock, *, raising: bool = False) -> None:
        """The event loop saw a wake-up: call the callbacks, then dispatch messages. The reader's thread."""
        self.woken()
        for _ in range(self.callbacks):  # those that come meanwhile do not keep messages waiting
            self.run_callback()
        self.dispatch(clock, raising=raising)

    def wake_if_ready(self) -> None:
        """Wake the reader if a message or a callback may go now. Any thread."""
        with self._lock:
            if self._is_ready():
                self._arrived.notify_all()
                self._wake()

    def _is_ready(self) -> bool:
        return bool(self._callbacks) or self._line.ready()

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        """Take out the wanted messages, to be given back. Any thread."""
        with self._lock:
            return self._line.take(wanted)

    def fileno(self) -> int:
        """A descriptor that is readable when messages have arrived, for an event loop."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                if self._is_ready():
                    self._wake()
            return self._pipe[0]

    def _wake(self) -> None:
        """Make `fileno()` readable: messages arrived, or the reader stopped before the buffer was empty."""
        if self._pipe is not None and not self._woken:
            # A full pipe is a woken reader.
            with suppress(BlockingIOError):
                os.write(self._pipe[1], b"\0")
            self._woken = True  # not before: what raises has woken nobody

    def woken(self) -> None:
        """The reader saw the wake-up; later arrivals wake it anew."""
        with self._lock:
            self._woken = False
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 64)

    def close(self) -> None:
        """Close the pipe, which the event loop no longer watches; the buffer can still be used."""
        with self._lock:
            if self._pipe is not None:
                for end in self._pipe:
                    os.close(end)
                self._pipe = None
                self._woken = False
