"""Messages on their way to SQS in batches, several at a time, by threads that end with the work."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue, when_known
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.publish.pending import LINGER_SECONDS, PendingMessage, PendingMessages
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: Batches in flight, each with its thread.
MOST_SENDERS: Final = 8

#: Publishing waits while this many messages, or bytes, are pending, where SQS takes less than is published.
MOST_PENDING: Final = 1000
MOST_PENDING_BYTES = 32 * 1024 * 1024


class Sender:
    """Sends the messages put into it. `put` may be called from any thread of the process that made it.

    A batch is sent when it is full, or has lingered for a second, or `close` is called. The threads end with
    `close`, when nothing is left to send.

    Args:
        missing: is called with the name of a queue that turned out not to exist, from a sender's thread.
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
        lock = threading.Lock()  # guards everything below
        self._work = threading.Condition(lock)  # for the senders' threads
        self._sent = threading.Condition(lock)  # for threads that publish, or close
        self._pending: PendingMessages[str | None] = PendingMessages()
        self._closed = False
        self._threads = 0
        self._idle = 0
        self._outages: dict[Queue, Outage] = {}

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        """Have it sent, waiting while too much is pending; `False` where no thread of ours would send it."""
        if self._pid != os.getpid():
            return False  # and its lock may be held by a thread that this process does not have
        with self._work:
            self._sent.wait_for(self._has_capacity)
            if self._closed or not (self._threads or self._start_thread()):
                return False
            now = self._clock.monotonic()
            if self._pending.add(queue, message, task_id, now, self._outgoing.offloads):
                self._wake_sender()
            elif self._pending.count == 1:
                self._work.notify()  # to wait until it has lingered
            return True

    @property
    def empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending.count

    def close(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """Send what is left, and wait until it is sent or given up.

        Returns:
            Task id and reason of each message that could not be sent, and how many were put in altogether.
        """
        if self._pid == os.getpid():
            with self._work:
                self._closed = True
                self._work.notify_all()
                self._sent.notify_all()
                self._sent.wait_for(lambda: not self._pending.count)
        return self.unsent()

    def unsent(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """As `close`, of this moment: a message that waits, or whose answer has not come, is not sent yet."""
        if self._pid != os.getpid():
            return [], 0
        with self._work:
            unsent = [(task_id, UnavailableError("it was not sent yet")) for task_id in self._pending.waiting]
            return [*self._pending.failures, *unsent], self._pending.accepted

    def _has_capacity(self) -> bool:
        full = self._pending.count >= MOST_PENDING or self._pending.size >= MOST_PENDING_BYTES
        return self._closed or not full

    def _wake_sender(self) -> None:
        if self._idle:
            self._work.notify()
        elif self._threads < MOST_SENDERS:
            self._start_thread()

    def _start_thread(self) -> bool:
        started = start_thread(self._run, f"sqs-publish-{self._threads}") is not None
        self._threads += started
        return started

    def _run(self) -> None:
        batch = self._next()
        while batch:
            since = self._clock.monotonic()
            outcome = self._send(batch)
            with suppress(Exception):  # a filter of the log's must not end a sender
                self._log_outage(batch[0].queue, since, outcome)
            batch = self._next(batch, outcome)

    def _next(
        self,
        sent: list[PendingMessage[str | None]] | None = None,
        outcome: BatchResult | SQSError | None = None,
    ) -> list[PendingMessage[str | None]]:
        """The next batch; empty when there will be none. Concludes the last one under the same lock."""
        with self._work:
            if sent and outcome is not None:
                self._conclude(sent, outcome)
            while not (self._closed and not self._pending.count):
                now = self._clock.monotonic()
                if batch := self._pending.take(now, flushing=self._closed):
                    if self._pending.has_more(flushing=self._closed):
                        self._wake_sender()
                    return batch
                due = self._pending.due()
                self._idle += 1
                # No longer than that: the thread that waits for the next instant may be busy by then.
                self._work.wait(LINGER_SECONDS if due is None else max(0.0, min(due - now, LINGER_SECONDS)))
                self._idle -= 1
            self._threads -= 1
            return []

    def _conclude(self, batch: list[PendingMessage[str | None]], outcome: BatchResult | SQSError) -> None:
        self._pending.conclude(batch, outcome, self._clock.monotonic())
        self._sent.notify_all()
        if self._closed and not self._pending.count:
            self._work.notify_all()
        elif isinstance(outcome, SQSError) or outcome.failed:
            self._work.notify()  # to wait for the retry

    def _send(self, batch: list[PendingMessage[str | None]]) -> BatchResult | SQSError:
        queue = batch[0].queue
        try:
            send = partial(self._outgoing.send_batch, queue, [pending.message for pending in batch])
            return when_known(send) if queue.origin == "created" else send()
        except SQSError as error:
            return error
        except Exception as bug:
            logger.exception("unexpected error while sending messages to %r; they are sent again", queue.name)
            return UnavailableError(repr(bug))

    def _log_outage(self, queue: Queue, since: float, outcome: BatchResult | SQSError) -> None:
        if isinstance(outcome, QueueDoesNotExistError):
            self._missing(queue.name)
        errors = [outcome] if isinstance(outcome, SQSError) else list(outcome.failed.values())
        passing = [error for error in errors if isinstance(error, PASSING_ERRORS)]
        if passing:
            self._outage(queue).failure(passing[0])
        elif queue in self._outages and not isinstance(outcome, SQSError):
            self._outage(queue).success(since)

    def _outage(self, queue: Queue) -> Outage:
        with self._work:
            if queue not in self._outages:
                self._outages[queue] = Outage(logger, "send messages", queue.name, self._clock)
            return self._outages[queue]
