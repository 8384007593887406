"""Messages on their way to SQS in batches, several at a time, by threads that end with the work."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.publish.pending import WINDOW, Entry, PendingMessages
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

#: Batches in flight.
THREADS = 8

#: Where more is published than SQS takes, publishing waits for room: as many messages, and bytes, are held.
MOST_MESSAGES = 1000
MOST_BYTES = 32 * 1024 * 1024


class Sender:
    """Sends what is put into it. `put` may be called from any thread; the process that made it sends.

    A batch is sent when it is full, or has waited for a second, or `close` is called.

    Args:
        missing: is told the name of a queue that turned out not to exist, from a sender's thread.
        clock: the monotonic clock.
    """

    def __init__(
        self, missing: Callable[[str], None] = lambda _name: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._missing = missing
        self._clock = clock
        self._pid = os.getpid()
        lock = threading.Lock()  # guards everything below
        self._work = threading.Condition(lock)  # for the senders
        self._capacity = threading.Condition(lock)  # for those who publish, and who closes
        self._pending = PendingMessages()
        self._closed = False
        self._threads = 0
        self._idle = 0
        self._troubles: dict[Queue, Outage] = {}

    def put(self, queue: Queue, message: OutgoingMessage, task_id: str | None) -> bool:
        """Have it sent, waiting while there is no room; whether it is.

        It is not where the sender is closed, or is another process's, or there can be no thread.
        """
        if self._pid != os.getpid():
            return False  # and its lock may be held by a thread that this process does not have
        with self._work:
            self._capacity.wait_for(self._has_room)
            if self._closed or not self._has_thread():
                return False
            if self._pending.add(queue, message, task_id, self._clock.monotonic()):
                self._wake_a_sender()
            elif self._pending.count == 1:
                self._work.notify()  # it sets the time
            return True

    @property
    def empty(self) -> bool:
        """Whether nothing waits or is under way."""
        return not self._pending.count

    def close(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """Send what is left, and wait until it is sent or given up.

        Returns:
            Task id and reason of what could not be sent, and how many were put in altogether.
        """
        if self._pid != os.getpid():
            return [], 0
        with self._work:
            self._closed = True
            self._work.notify_all()
            self._capacity.notify_all()
            self._capacity.wait_for(lambda: not self._pending.count)
        return self.unsent()

    def unsent(self) -> tuple[list[tuple[str | None, Exception]], int]:
        """As `close`, of this moment: what waits, or whose answer has not come, is not sent yet."""
        if self._pid != os.getpid():
            return [], 0
        with self._work:
            waiting = [
                (task_id, UnavailableError("it was not sent yet")) for task_id in self._pending.waiting
            ]
            return [*self._pending.failures, *waiting], self._pending.accepted

    def _has_room(self) -> bool:
        full = self._pending.count >= MOST_MESSAGES or self._pending.size >= MOST_BYTES
        return self._closed or not full

    def _has_thread(self) -> bool:
        return self._threads > 0 or self._start_thread()

    def _wake_a_sender(self) -> None:
        if self._idle:
            self._work.notify()
        elif self._threads < THREADS:
            self._start_thread()

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run, name=f"sqs-publish-{self._threads}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            return False
        self._threads += 1
        return True

    def _run(self) -> None:
        batch = self._next()
        while batch:
            since = self._clock.monotonic()
            outcome = self._send(batch)
            with suppress(Exception):  # a filter of the log's must not end a sender
                self._tell(batch[0].queue, since, outcome)
            batch = self._next(batch, outcome)

    def _next(
        self, done: list[Entry] | None = None, outcome: BatchResult | SQSError | None = None
    ) -> list[Entry]:
        """The next batch; empty when there will be none. The lock is taken once for what is done, too."""
        with self._work:
            if done and outcome is not None:
                self._conclude(done, outcome)
            while not (self._closed and not self._pending.count):
                now = self._clock.monotonic()
                if batch := self._pending.take(now, hurried=self._closed):
                    if self._pending.has_more(hurried=self._closed):
                        self._wake_a_sender()
                    return batch
                due = self._pending.due()
                self._idle += 1
                # No longer than the window: another thread, which was to mind the time, may be busy.
                self._work.wait(WINDOW if due is None else max(0.0, min(due - now, WINDOW)))
                self._idle -= 1
            self._threads -= 1
            return []

    def _conclude(self, batch: list[Entry], outcome: BatchResult | SQSError) -> None:
        self._pending.conclude(batch, outcome, self._clock.monotonic())
        self._capacity.notify_all()
        if self._closed and not self._pending.count:
            self._work.notify_all()
        elif isinstance(outcome, SQSError) or outcome.failed:
            self._work.notify()  # it minds the time of what is tried again

    def _send(self, batch: list[Entry]) -> BatchResult | SQSError:
        queue = batch[0].queue
        try:
            return queue.sqs.send_batch(queue.url, [entry.message for entry in batch])
        except SQSError as error:
            return error
        except Exception as bug:
            logger.exception("sending stumbled and tries again", extra={"queue": queue.name})
            return UnavailableError(repr(bug))

    def _tell(self, queue: Queue, since: float, outcome: BatchResult | SQSError) -> None:
        if isinstance(outcome, QueueDoesNotExistError):
            self._missing(queue.name)
        errors = [outcome] if isinstance(outcome, SQSError) else list(outcome.failed.values())
        passing = [error for error in errors if isinstance(error, PASSING_ERRORS)]
        if passing:
            self._outage(queue).failure(passing[0])
        elif queue in self._troubles and not isinstance(outcome, SQSError):
            self._outage(queue).success(since)

    def _outage(self, queue: Queue) -> Outage:
        with self._work:
            if queue not in self._troubles:
                self._troubles[queue] = Outage(logger, "send messages", queue.name, self._clock)
            return self._troubles[queue]
