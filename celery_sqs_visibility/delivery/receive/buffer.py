"""Buffer between the threads that poll and the thread that dispatches messages to Celery, in order."""

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

#: Messages are dispatched for this long before the event loop continues.
DISPATCH_SECONDS: Final = 0.01


class BufferedMessage(NamedTuple):
    """A delivery, its message's kombu payload, and a function that dispatches the message on the main thread.

    The second argument of `dispatch` is whether to raise the consumer's exception instead of logging it.
    """

    delivery: Delivery
    payload: dict[str, Any]
    dispatch: Callable[[BufferedMessage, bool], None]


class Line(Protocol):
    """Waiting messages, in the order in which they go to Celery. Any thread: each method is atomic."""

    def __len__(self) -> int:
        """The number of waiting messages."""

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
        try:
            return self._messages.popleft()
        except IndexError:
            return None

    def ready(self) -> bool:
        return bool(self._messages)

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        taken = []
        for message in self._messages.copy():
            if wanted(message):
                with suppress(ValueError):  # the reader has taken it meanwhile
                    self._messages.remove(message)
                    taken.append(message)
        return taken


class Buffer:
    """A line of messages that a thread can wait for, or that wakes an event loop through a pipe.

    The reader is the one thread that takes messages, usually the main thread.

    Attributes:
        looped_at: the monotonic instant at which the reader's event loop last turned.
    """

    def __init__(self, looped_at: float = 0.0) -> None:
        self._line: Line = ArrivalLine()
        self._arrived = threading.Condition()  # guards everything below
        self._callbacks: deque[Callable[[], bool]] = deque()
        self._pipe: tuple[int, int] | None = None
        self._woken = False
        self.looped_at = looped_at

    def __len__(self) -> int:
        return len(self._line)

    def late(self, loop_late: Callable[[float, float], float], now: float) -> float:
        """For how long the reader has been blocked, according to `loop_late` and the loop's last turn."""
        return loop_late(self.looped_at, now)

    def line_up(self, line: Line) -> None:
        """Use this line instead of the order of arrival. Call it before the first message."""
        self._line = line

    def put(self, messages: Sequence[BufferedMessage]) -> None:
        """Add messages, in order, and wake the reader. Any thread."""
        if messages:
            with self._arrived:
                self._line.add(messages)
                self._arrived.notify_all()
                self._wake()

    def put_callback(self, callback: Callable[[], bool]) -> None:
        """Make the reader call `callback` before it takes waiting messages. Any thread.

        The callback returns whether it delivered a message.
        """
        with self._arrived:
            self._callbacks.append(callback)
            self._arrived.notify_all()
            self._wake()

    @property
    def callbacks(self) -> int:
        """The number of waiting callbacks. Any thread."""
        return len(self._callbacks)

    def run_callback(self) -> bool:
        """Call the oldest callback. Returns whether it delivered a message. The reader."""
        with self._arrived:
            callback = self._callbacks.popleft() if self._callbacks else None
            if callback is None:
                return False
        try:
            return callback()
        finally:
            self.wake_if_ready()

    def get(self) -> BufferedMessage | None:
        """Take the next message; `None` if none may go now. The reader."""
        return self._line.next()

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message or a callback. Returns whether there is one. A reader without event loop."""
        with self._arrived:
            return self._arrived.wait_for(self._is_ready, timeout)

    def dispatch(self, clock: Clock, *, raising: bool = False) -> int:
        """Dispatch messages in order, for `DISPATCH_SECONDS`. Returns their number. The reader.

        With `raising`, an exception of the consumer is raised, and the messages after that one stay in the
        buffer.
        """
        now, next_message = clock.monotonic, self._line.next
        until = now() + DISPATCH_SECONDS
        dispatched = 0
        try:
            while now() <= until and (buffered := next_message()) is not None:
                buffered.dispatch(buffered, raising)
                dispatched += 1
        finally:
            self.wake_if_ready()
        return dispatched

    def on_readable(self, clock: Clock, *, raising: bool = False) -> None:
        """Call the callbacks, then dispatch messages, after a wake-up of the event loop. The reader."""
        self.woken()
        for _ in range(self.callbacks):  # not those added meanwhile, which would delay messages
            self.run_callback()
        self.dispatch(clock, raising=raising)

    def wake_if_ready(self) -> None:
        """Wake the reader if a message or a callback may go now. Any thread."""
        with self._arrived:
            if self._is_ready():
                self._arrived.notify_all()
                self._wake()

    def _is_ready(self) -> bool:
        return bool(self._callbacks) or self._line.ready()

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        """Take out the wanted messages. Any thread."""
        return self._line.take(wanted)

    def fileno(self) -> int:
        """A descriptor for an event loop, readable when messages have arrived."""
        with self._arrived:
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
            self._woken = True  # last: an exception before this has woken nobody

    def woken(self) -> None:
        """Note that the reader is awake, so that later arrivals wake it again. The reader."""
        with self._arrived:
            self._woken = False
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 64)

    def close(self) -> None:
        """Close the pipe, once the event loop no longer watches it. The buffer can still be used."""
        with self._arrived:
            if self._pipe is not None:
                for end in self._pipe:
                    os.close(end)
                self._pipe = None
                self._woken = False
