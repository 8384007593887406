"""Which block of `publish_batch` a publication belongs to: the innermost around it, of the same broker.

"Around" is what Python's context variables say. asyncio's tasks and `asyncio.to_thread` inherit them. Threads
and greenlets do not: one that serves another request finds its messages sent when `delay()` returns. It takes
part only where it joins (`Batch.joined`, `contextvars.copy_context().run`).

A generator runs in its caller's context. A block that a generator holds takes only what is published while
the generator runs, and not what its caller publishes before the next `next()`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.publish.sender import Sender
from celery_sqs_visibility.errors import PublishError
from celery_sqs_visibility.transport.broker_context import BrokerContext

_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

#: The context managers' methods that run between a `with` statement and what it opens.
ENTER: Final = ("__enter__", "__aenter__")


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """One `with` statement whose body publishes into a block."""

    batch: Batch
    generator: FrameType | None  # the frame of the generator that holds the statement, if one does

    @property
    def takes_part(self) -> bool:
        """Whether the caller publishes into the block: a generator's has to be among its callers."""
        if self.batch.open and self.generator is not None:
            frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented for CPython and PyPy
            while frame is not None and frame is not self.generator:
                frame = frame.f_back
            return frame is not None
        return self.batch.open


#: What this context has joined, the innermost last.
_joined: ContextVar[tuple[Joined, ...]] = ContextVar(
    "celery_sqs_visibility.transport.publish_scope", default=()
)


class Batch:
    """An open block, of the broker whose context `find_context` gives, if that is SQS. Any thread."""

    def __init__(self, find_context: Callable[[], BrokerContext | None]) -> None:
        self._find_context = find_context
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards everything below
        self._closed = False
        self._senders: list[Sender] = []  # the last is in use

    @property
    def open(self) -> bool:
        """Whether it takes messages. A forked child is not in its parent's blocks."""
        return not self._closed and self._pid == os.getpid()

    @functools.cached_property
    def context(self) -> BrokerContext | None:
        """The broker's. Looked up at the first publication: most brokers are not ours."""
        return self._find_context()

    @contextmanager
    def joined(self) -> Iterator[Batch]:
        """Have this thread, or greenlet, publish into the block too, inside `with batch.joined():`."""
        here = Joined(self, _generator_that_enters())
        others = [other for other in _joined.get() if other.batch.open]
        # A generator that is suspended now is called from here when it runs, so its block is further in.
        suspended = [other for other in others if not other.takes_part]
        _joined.set((*(other for other in others if other not in suspended), here, *suspended))
        try:
            yield self
        finally:
            # Not what was there before: generators end in any order.
            _joined.set(tuple(other for other in _joined.get() if other is not here))

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        """See `Sender.put`."""
        sender = self._sender()
        return sender is not None and sender.put(queue, message, task_id)

    def flush(self) -> None:
        """Wait until all published so far is sent."""
        before = self._sender()
        if before is not None and not before.empty:
            self._sender(new=True)
            before.close()

    def close(self) -> PublishError | None:
        """Take no more, and wait until everything is sent. Returns what was not."""
        if not self.open:
            return None
        with self._lock:
            self._closed = True
        for sender in self._senders:
            sender.close()
        return self.unsent()

    def unsent(self) -> PublishError | None:
        """What is not known to have been sent by now."""
        results = [sender.unsent() for sender in self._senders]
        failures = [failure for failed, _ in results for failure in failed]
        return PublishError(failures, sum(count for _, count in results)) if failures else None

    def _sender(self, *, new: bool = False) -> Sender | None:
        with self._lock:
            if self._closed:
                return None
            if new or not self._senders:
                context = self.context
                self._senders.append(Sender(context.queues.forget, context.outgoing) if context else Sender())
            return self._senders[-1]


def blocks_around() -> list[Batch]:
    """The open blocks around the caller, the innermost last."""
    return [joined.batch for joined in _joined.get() if joined.takes_part]


def batched(context: BrokerContext, queue: Queue, message: OutgoingMessage, raw: dict[str, Any]) -> bool:
    """Leave the message to the innermost block of the broker around the caller; `False`: there is none.

    Blocks while too much waits to be sent. `raw` is kombu's message, of which `message` was made.
    """
    blocks = [batch for batch in blocks_around() if batch.context is context]
    while blocks:
        batch = blocks.pop()
        if queue.fifo:
            for outer in blocks:  # what was published before, around this block, comes before what is in it
                outer.flush()
        if batch.put(queue, message, _task_id(raw)):
            return True
    return False


def _generator_that_enters() -> FrameType | None:
    """The generator that holds the `with` statement being entered, if one does.

    contextlib's generators and any context manager's `__enter__` enter for their caller.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - documented for CPython and PyPy
    while frame.f_back is not None and (_enters_for_another(frame) or _enters_for_another(frame.f_back)):
        frame = frame.f_back
    return frame if frame.f_code.co_flags & _GENERATORS else None


def _enters_for_another(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "contextlib" or frame.f_code.co_name in ENTER


def _task_id(raw: dict[str, Any]) -> str | None:
    task_id: str | None = (raw.get("headers") or {}).get("id")
    return task_id or raw.get("properties", {}).get("correlation_id")
