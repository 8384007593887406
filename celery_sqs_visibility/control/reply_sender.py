"""Sender of a worker's replies to commands, in threads of its own: Celery's event loop does not wait."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, TooLargeError
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.measurements import ReplyDropped
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: A reply is sent again after these seconds: SQS may not see a new queue for a second.
REPLY_PAUSES_SECONDS: Final = (0.1, 0.2, 0.3, 0.3, 0.5, 0.6)

#: Most replies that a process sends at once.
REPLY_THREADS: Final = 4

#: Most characters of waiting replies; further replies are dropped.
MOST_CHARACTERS: Final = 16 * 1024 * 1024


@dataclass(slots=True, order=True)
class Reply:
    """A reply that waits for the monotonic instant `due`."""

    due: float
    url: str
    text: str
    failures: int = 0


class ReplySender:
    """The reply sender of a process. Any thread."""

    def __init__(self, queues: ControlQueues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        self.batch_threads: BatchThreads[list[Reply]] = BatchThreads(
            "sqs-control-reply", "sends replies to commands", REPLY_THREADS, self, clock
        )
        self._lock = self.batch_threads.lock  # guards what follows
        self._done = threading.Condition(self._lock)
        self._waiting: list[Reply] = []  # a heap
        self._characters = 0  # of those that wait
        self._untried = 0

    def reply(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        """Send a worker's reply, in another thread. It is dropped if its caller has gone."""
        address, _, collector = routing_key.partition(".")
        url = self._queues.url_of(exchange, address)
        if url is None:
            logger.warning("dropped the reply to a command, since %r is no address of one", routing_key)
            emit(ReplyDropped())
            return
        reply, reply_id = wire.body_of(message), wire.new_id()
        try:
            text = wire.encode(message, reply, exchange, collector, message_id=reply_id)
        except TooLargeError as error:
            errors = {node: {"error": f"the reply cannot be sent: {error}"} for node in reply}
            text = wire.encode(message, errors, exchange, collector, message_id=reply_id)
        with self._lock:
            fits = self._characters + len(text) <= MOST_CHARACTERS
            if fits:
                self._untried += 1
                self._wait(Reply(self._clock.monotonic(), url, text))
                self.batch_threads.start()
        if not fits:
            logger.warning("dropped the reply to a command, since too many wait for SQS")
            emit(ReplyDropped())

    def close(self, timeout: float) -> None:
        """Send untried replies, for `timeout` seconds at the most, and end the threads."""
        with self._lock:
            self._done.wait_for(lambda: not self._untried, timeout)
        self.batch_threads.stop()

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `batch_threads.Work`
        """See `batch_threads.Work`."""
        return self._waiting[0].due if self._waiting else None

    def ready(self) -> int:
        """See `batch_threads.Work`."""
        return len(self._waiting)

    def take(self, now: float) -> list[Reply] | None:
        """See `batch_threads.Work`."""
        if not self._waiting or self._waiting[0].due > now:
            return None
        reply = heapq.heappop(self._waiting)
        self._characters -= len(reply.text)
        return [reply]

    def send(self, batch: list[Reply], _since: float) -> BatchResult:
        """See `batch_threads.Work`."""
        self._queues.sqs.send(batch[0].url, OutgoingMessage(batch[0].text))
        return BatchResult({})

    def conclude(self, batch: list[Reply], _since: float, failed: Mapping[int, SQSError]) -> None:
        """See `batch_threads.Work`: SQS may not know a new queue yet."""
        (reply,), error = batch, failed.get(0)
        passes = isinstance(error, (*PASSING_ERRORS, QueueDoesNotExistError))
        again = passes and reply.failures < len(REPLY_PAUSES_SECONDS)
        with self._lock:
            self._untried -= not reply.failures
            self._done.notify_all()
            if again:
                reply.due = self._clock.monotonic() + REPLY_PAUSES_SECONDS[reply.failures]
                reply.failures += 1
                self._wait(reply)
        if error is None or again:
            return
        if passes:
            logger.info("dropped the reply to a command, since its caller has gone: %s", error)
        else:
            logger.warning("cannot send the reply to a command: %s", error)
        emit(ReplyDropped())

    def _wait(self, reply: Reply) -> None:
        heapq.heappush(self._waiting, reply)
        self._characters += len(reply.text)
        self.batch_threads.wake()
