"""Blocks of `publish_batch`: a publication goes into the innermost block of its broker.

A context variable has the open blocks, so asyncio's tasks and `asyncio.to_thread` inherit them. Threads and
greenlets don't: a message published there is sent at once, unless they join (`Batch.joined`,
`contextvars.copy_context().run`). A generator shares its caller's context, and so the open blocks.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import PublishError

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.publish.sender import Sender

#: Creates a sender to one broker. There is one such function for each broker and process.
NewSender = Callable[[], "Sender"]

#: The blocks that this context has entered or joined, the innermost last.
_around: ContextVar[tuple[Batch, ...]] = ContextVar("celery_sqs_visibility.publish_batch", default=())


class Batch:
    """A block for the broker that `find_broker` returns; without effect if that isn't SQS. Any thread."""

    def __init__(self, find_broker: Callable[[], NewSender | None]) -> None:
        self._find_broker = find_broker
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards everything below
        self._closed = False
        self._senders: list[Sender] = []  # the last is in use

    @property
    def open(self) -> bool:
        """Whether it takes messages. A forked child isn't in its parent's blocks."""
        return not self._closed and self._pid == os.getpid()

    @functools.cached_property
    def broker(self) -> NewSender | None:
        """The broker, looked up at the first publication; `None` if it isn't SQS."""
        return self._find_broker()

    @contextmanager
    def joined(self) -> Iterator[Batch]:
        """Let this thread or greenlet publish into the block, too, inside `with batch.joined():`."""
        _around.set((*blocks_around(), self))
        try:
            yield self
        finally:
            # Don't reset the variable by its token: generators end in any order, and in any context.
            blocks = _around.get()
            if self in blocks:
                last = len(blocks) - 1 - blocks[::-1].index(self)
                _around.set(blocks[:last] + blocks[last + 1 :])

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        sender = self._sender()
        return sender is not None and sender.put(queue, message, task_id)

    def flush(self) -> None:
        """Wait until everything published so far is sent."""
        before = self._sender()
        if before is not None and not before.empty:
            self._sender(new=True)
            before.close()

    def close(self) -> PublishError | None:
        """Take no more messages, and wait until all are sent. Returns an error about those that were not."""
        if not self.open:
            return None
        with self._lock:
            self._closed = True
        for sender in self._senders:
            sender.close()
        return self.unsent()

    def unsent(self) -> PublishError | None:
        """The messages that are not known to be sent, as one error; `None` if there are none."""
        results = [sender.unsent() for sender in self._senders]
        failures = [failure for failed, _ in results for failure in failed]
        return PublishError(failures, sum(count for _, count in results)) if failures else None

    def _sender(self, *, new: bool = False) -> Sender | None:
        with self._lock:
            if self._closed or self.broker is None:
                return None
            if new or not self._senders:
                self._senders.append(self.broker())
            return self._senders[-1]


def blocks_around() -> list[Batch]:
    """The open blocks around the caller, the innermost last."""
    return [batch for batch in _around.get() if batch.open]


def batched(broker: NewSender, queue: Queue, message: OutgoingMessage, raw: dict[str, Any]) -> bool:
    """Put the message into the innermost block of the broker. Returns `False` if there is none.

    Waits while too many messages are pending. `raw` is kombu's message, of which `message` was made.
    """
    if not _around.get():
        return False
    blocks = [batch for batch in blocks_around() if batch.broker is broker]
    while blocks:
        batch = blocks.pop()
        if queue.fifo:
            for outer in blocks:  # what was published there before comes first
                outer.flush()
        if batch.put(queue, message, _task_id(raw)):
            return True
    return False


def _task_id(raw: dict[str, Any]) -> str | None:
    task_id: str | None = (raw.get("headers") or {}).get("id")
    return task_id or raw.get("properties", {}).get("correlation_id")
