"""Buffers whose queues take turns: a message that others may overtake stays there until it can start."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from weakref import ref

from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.policy.prefetch import Slots


class TurnBuffers:
    """The buffers of a process's connections. Any thread.

    Args:
        turns: decide which queue is next.
        lock: guards the turns and the lines of all buffers. It may be taken while holding a buffer's lock,
            never the other way round.
    """

    def __init__(self, turns: Turns, lock: threading.Lock) -> None:
        self.turns = turns
        self._lock = lock
        self._buffers: tuple[ref[Buffer], ...] = ()  # replaced as a whole, by the main thread

    def attach(self, buffer: Buffer, slots: Callable[[], Slots] | None) -> None:
        """Make the queues of a connection's buffer take turns. Call it before the first message. Idempotent.

        All consuming channels of a connection share its buffer. `slots` returns the slots of the process.
        """
        self.turns.slots = slots
        buffers = [each for each in self._buffers if each() is not None]
        if ref(buffer) not in buffers:
            buffer.line_up(TurnLine(self.turns, self._lock))
            self._buffers = (*buffers, ref(buffer))

    def wake(self) -> None:
        """Make buffers dispatch the messages that can start now, because a slot may be free."""
        for each in self._buffers:
            if (buffer := each()) is not None:
                buffer.wake_if_ready()


class TurnLine:
    """A line of messages by queue; the queues take turns."""

    def __init__(self, turns: Turns, lock: threading.Lock) -> None:
        self._turns = turns
        self._lock = lock
        self._queues: dict[str, deque[BufferedMessage]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, messages: Iterable[BufferedMessage]) -> None:
        with self._lock:
            self._add(messages)

    def _add(self, messages: Iterable[BufferedMessage]) -> None:
        for message in messages:
            self._queues.setdefault(message.delivery.queue.name, deque()).append(message)

    def next(self) -> BufferedMessage | None:
        with self._lock:
            queue = self._turns.next(self._queues)
            if queue is None:
                return None
            message = self._queues[queue].popleft()
            if not self._queues[queue]:
                del self._queues[queue]
            self._turns.begin(message.delivery)
            return message

    def ready(self) -> bool:
        with self._lock:
            return self._turns.may_start(self._queues)

    def take(self, wanted: Callable[[BufferedMessage], bool]) -> list[BufferedMessage]:
        with self._lock:
            every = [message for messages in self._queues.values() for message in messages]
            self._queues = {}
            self._add(message for message in every if not wanted(message))
        return [message for message in every if wanted(message)]
