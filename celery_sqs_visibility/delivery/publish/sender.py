"""Sends messages to SQS in batches, several at a time, in threads that end with the work."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue, when_known
from celery_sqs_visibility.core.pending import PendingMessage, PendingMessages
from celery_sqs_visibility.delivery.outage import Outages
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: Batches in flight, each in its own thread.
MAX_SENDERS: Final = 8

#: Publishing blocks while this many messages, or bytes, are pending because SQS is slower than the
#: publishers.
MAX_PENDING: Final = 1000
MAX_PENDING_BYTES = 32 * 1024 * 1024

#: A thread that waits for the senders checks them this often.
CHECK_SECONDS: Final = 5.0

Messages = list[PendingMessage[str | None]]


class Sender:
    """Sends the messages put into it. `put` may be called by any thread of the process that created it.

    A batch is sent when it is full, has lingered for a second, or `close` is called. The threads end after
    `close`, when nothing is left to send.

    Args:
        missing: called in a sender's thread with the name of a queue that doesn't exist.
        outgoing: makes the requests.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        missing: Callable[[str], None] = lambda _name: None,
        outgoing: OutgoingMessages | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._missing = missing
        self._outgoing = outgoing or OutgoingMessages()
        self._clock = clock
        self._pid = os.getpid()
        # No thread counts as stuck, or its messages would be published twice: an upload to S3 may take long.
        # It has a pump of its own: when a block is garbage-collected, any thread may have to wait for its
        # end.
        self._pump = Pump(clock)
        self.lane = self._pump.lane("sends messages", MAX_SENDERS, self, hangs_after=math.inf)
        self._lock = self.lane.lock  # guards everything below
        self._pending: PendingMessages[str | None] = PendingMessages()
        self._closed = False
        self._outages = Outages(logger, clock)

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        """Add a message, once few enough are pending. Returns `False` if no thread would send it."""
        if self._pid != os.getpid():
            return False  # the lock may be held by a thread that this process doesn't have
        if not self._has_capacity():
            self._wait_until(self._has_capacity)
        with self._lock:
            if self._closed or not self.lane.has_thread():
                return False
            now, lingering = self._clock.monotonic(), self._pending.due() is not None
            fills = self._pending.add(queue, message, task_id, now, self._outgoing.offloads)
            if fills or not lingering:
                self.lane.wake()  # to send it, or to wait until it has lingered
            return True

    @property
    def empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending.count

    def close(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """Send what is left, and wait until it is sent or given up.

        Returns:
            The task id and error of each message that could not be sent, and the total number of messages.
        """
        if self._pid == os.getpid():
            with self._lock:
                self._closed = True
                self.lane.wake()
            self.lane.stop()
            self._wait_until(lambda: not self._pending.count)
        return self.unsent()

    def unsent(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """What `close` would return now: a message that waits or is not answered counts as not sent."""
        if self._pid != os.getpid():
            return [], 0
        with self._lock:
            unsent = [(task_id, UnavailableError("it was not sent yet")) for task_id in self._pending.waiting]
            return [*self._pending.failures, *unsent], self._pending.accepted

    def due(self, now: float) -> float | None:
        return now if self._pending.has_more(flushing=self._closed) else self._pending.due()

    def ready(self) -> int:
        return self._pending.batches_ready()

    def take(self, now: float) -> Messages | None:
        return self._pending.take(now, flushing=self._closed) or None

    def send(self, batch: Messages, _since: float) -> BatchResult:
        queue = batch[0].queue
        send = partial(self._outgoing.send_batch, queue, [pending.message for pending in batch])
        return when_known(send) if queue.origin == "created" else send()

    def conclude(self, batch: Messages, since: float, failed: Mapping[int, SQSError]) -> None:
        with suppress(Exception):  # a logging filter must not end a sender
            self._log_outage(batch, since, list(failed.values()))
        with self._lock:
            self._pending.conclude(batch, failed, self._clock.monotonic())

    def _has_capacity(self) -> bool:
        full = self._pending.count >= MAX_PENDING or self._pending.size >= MAX_PENDING_BYTES
        return self._closed or not full

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait, and replace threads that have died: a producer has no supervisor."""
        while True:
            with self._lock:
                if self.lane.wait_until(condition, CHECK_SECONDS):
                    return
            self._pump.replace_stuck(self._clock.monotonic())

    def _log_outage(self, batch: Messages, since: float, errors: list[SQSError]) -> None:
        queue = batch[0].queue
        if any(isinstance(error, QueueDoesNotExistError) for error in errors):
            self._missing(queue.name)
        passing = (error for error in errors if isinstance(error, PASSING_ERRORS))
        worked = len(errors) < len(batch)
        self._outages.note("send messages", queue.name, next(passing, None), since, worked=worked)
