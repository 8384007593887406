"""Buffer between the threads that poll and the one that dispatches messages to Celery, in order."""

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

#: Messages are dispatched for this long, then the event loop goes on.
DISPATCH_SECONDS: Final = 0.01


class BufferedMessage(NamedTuple):
    """A delivery, the kombu payload of its message, and a function that dispatches it on the main thread.

    The second argument of `dispatch` says whether it raises the consumer's exception, or logs it.
    """

    delivery: Delivery
    payload: dict[str, Any]
    dispatch: Callable[[BufferedMessage, bool], None]


class Line(Protocol):
    """Waiting messages, in the order in which they go to Celery. The buffer locks."""

    def __len__(self) -> int:
        """How many messages wait."""

    def add(self, messages: Sequence[BufferedMessage]) -> None:
        """Add messages that have arrived."""

    def next(self) -> BufferedMessage | None:
        """Take the next message; `None` if none may go now."""

    def ready(self) -> bool:
        """Whether a message may go now."""

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
    """A line of messages for which a thread can wait, or that wakes an event loop through a pipe.

    The reader is the one thread that takes messages, usually the main thread.

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
        """Keep messages in this line instead of the order of arrival. Called before any arrives."""
        self._line = line

    def put(self, messages: Sequence[BufferedMessage]) -> None:
        """Add messages, in order, and wake the reader. Any thread."""
        if messages:
            with self._lock:
                self._line.add(messages)
                self._arrived.notify_all()
                self._wake()

    def put_callback(self, callback: Callable[[], bool]) -> None:
        """Make the reader call the callback before it takes waiting messages. Any thread.

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
        """Call the oldest callback. Returns whether it delivered a message. The reader."""
        with self._lock:
            callback = self._callbacks.popleft() if self._callbacks else None
            if callback is None:
                return False
        try:
            return callback()
        finally:
            self.wake_if_ready()

    def get(self) -> BufferedMessage | None:
        """Take the next message; `None` if none may go now. The reader."""
        with self._lock:
            return self._line.next()

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message or a callback. Returns whether there is one. A reader without an event loop."""
        with self._lock:
            return self._arrived.wait_for(self._is_ready, timeout)

    def dispatch(self, clock: Clock, *, raising: bool = False) -> int:
        """Dispatch messages, in order, for `DISPATCH_SECONDS`. Returns how many. The reader.

        With `raising` an exception of the consumer is raised, and the messages after that one stay here.
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
        """Call the callbacks, then dispatch messages, after a wake-up of the event loop. The reader."""
        self.woken()
        for _ in range(self.callbacks):  # those that come meanwhile must not delay messages
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
        """Take out the wanted messages. Any thread."""
        with self._lock:
            return self._line.take(wanted)

    def fileno(self) -> int:
        """A descriptor for an event loop, readable when messages have arrived."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                if self._is_ready():
                    self._wake()
            return self._pipe[0]

    def _wake(self) -> None:
        """Make `fileno()` readable. Under the lock."""
        if self._pipe is not None and not self._woken:
            # If the pipe is full, the reader is awake.
            with suppress(BlockingIOError):
                os.write(self._pipe[1], b"\0")
            self._woken = True  # last: an exception before has woken nobody

    def woken(self) -> None:
        """Note that the reader is awake: later arrivals wake it anew."""
        with self._lock:
            self._woken = False
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 64)

    def close(self) -> None:
        """Close the pipe, which the event loop no longer watches. The buffer can still be used."""
        with self._lock:
            if self._pipe is not None:
                for end in self._pipe:
                    os.close(end)
                self._pipe = None
                self._woken = False
