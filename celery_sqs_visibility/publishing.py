"""Which block of `publish_batch` a publication belongs to: the innermost around it, of the same broker.

"Around" is what Python's context variables say, which asyncio's tasks inherit, and threads do not. A thread
that is started within a block inherits it all the same; one that was there before is somebody else's as far
as we know, whose `delay()` has to mean "sent", so it takes part only where it says so (`Batch.joined`).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.broker import Broker
from celery_sqs_visibility.delivery.outbox import Outbox, PublishError

_here: ContextVar[Batch | None] = ContextVar("celery_sqs_visibility.publishing", default=None)

#: The attribute of a thread that was started within a block.
_INHERITED = "_celery_sqs_visibility_batch"


class Batch:
    """An open block. Usable from any thread.

    Args:
        find_broker: gives the broker that the block is about; `None`: one that is not ours.
        outer: the block around it.
    """

    def __init__(self, find_broker: Callable[[], Broker | None], outer: Batch | None) -> None:
        self.outer = outer
        self._find_broker = find_broker
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards everything below
        self._closed = False
        self._outboxes: list[Outbox] = []  # the last is in use

    @property
    def open(self) -> bool:
        """Whether it takes messages: a forked child's are its own, whatever block it was forked in."""
        return not self._closed and self._pid == os.getpid()

    @functools.cached_property
    def broker(self) -> Broker | None:
        """What it is about: looked up when something is published, since most brokers are not ours."""
        return self._find_broker()

    @contextmanager
    def joined(self) -> Iterator[Batch]:
        """Have this thread, or greenlet, publish into the block too, inside `with batch.joined():`."""
        before = _here.get()
        _here.set(self)
        try:
            yield self
        finally:
            _here.set(before)

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        """See `Outbox.put`."""
        if queue.fifo:
            self._let_outer_blocks_send()
        outbox = self._outbox()
        return outbox is not None and outbox.put(queue, message, task_id)

    def close(self) -> PublishError | None:
        """Wait until everything is sent; what was not. From then on, nothing goes into the block."""
        if not self.open:
            return None
        with self._lock:
            self._closed = True
            outboxes = list(self._outboxes)
        results = [outbox.close() for outbox in outboxes]
        failures = [failure for failed, _ in results for failure in failed]
        return PublishError(failures, sum(count for _, count in results)) if failures else None

    def _outbox(self, *, new: bool = False) -> Outbox | None:
        with self._lock:
            if self._closed:
                return None
            if new or not self._outboxes:
                self._outboxes.append(Outbox(self.broker.queues.forget) if self.broker else Outbox())
            return self._outboxes[-1]

    def _let_outer_blocks_send(self) -> None:
        """What was published before, around this block, comes before what is in it: FIFO."""
        outer = self.outer
        while outer is not None:
            outer._send_so_far()  # noqa: SLF001 - another of the same class
            outer = outer.outer

    def _send_so_far(self) -> None:
        before = self._outbox() if self.open else None
        if before is not None and not before.empty:
            self._outbox(new=True)
            before.close()


def current() -> Batch | None:
    """The innermost block around the caller."""
    return _here.get() or getattr(threading.current_thread(), _INHERITED, None)


def batched(broker: Broker, queue: Queue, message: OutgoingMessage, content: Mapping[str, Any]) -> bool:
    """Leave the message to the block around that is about the broker; `False`: there is none.

    Blocks while too much waits to be sent.

    Args:
        broker: the publishing connection's.
        queue: where it goes.
        message: what goes there.
        content: kombu's message, of which it was made.
    """
    batch = current()
    while batch is not None:
        if batch.open and batch.broker is broker and batch.put(queue, message, _task_id(content)):
            return True
        batch = batch.outer
    return False


def let_threads_inherit() -> None:
    """Have threads that are started within a block publish into it. Harmless if they do.

    `threading.Thread.start` is replaced, once, since threads do not know who started them.
    """
    start = threading.Thread.start
    if getattr(start, _INHERITED, False):
        return

    @functools.wraps(start)
    def start_in_block(thread: threading.Thread) -> None:
        batch = current()
        if batch is not None and batch.open:
            setattr(thread, _INHERITED, batch)
        start(thread)

    setattr(start_in_block, _INHERITED, True)
    threading.Thread.start = start_in_block  # type: ignore[method-assign, assignment]


def _task_id(content: Mapping[str, Any]) -> str | None:
    headers = content.get("headers") or {}
    task_id: str | None = headers.get("id") or content.get("properties", {}).get("correlation_id")
    return task_id
