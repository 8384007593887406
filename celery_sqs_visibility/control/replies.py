"""Replies to commands: collected by the process that asked, and sent by the workers.

A process has one queue for the replies to all its commands, and a consumer for each command. A worker's
replies are sent by other threads, so that Celery's event loop does not wait.
"""

from __future__ import annotations

import heapq
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.inbox import Inbox, Mailbox, Put
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, TooLargeError
from celery_sqs_visibility.events import ReplyDropped, emit
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: How long a process keeps its reply queue after its last command.
IDLE_SECONDS: Final = 60.0


class Collector:
    """The replies to one command, for a consumer that may come after them.

    Attributes:
        tickets: kombu's tickets of the commands: a late reply to an earlier command has another one.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.tickets: set[str] = set()
        self.mailbox = Mailbox()


class Replies:
    """The replies of a process. Any thread.

    Args:
        decode: reads a received message. Returns `None` if it can't be read.
    """

    def __init__(
        self,
        queues: ControlQueues,
        decode: Callable[[ReceivedMessage], wire.ControlMessage | None],
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._decode = decode
        self._clock = clock
        self._lock = ProcessLock()  # guards everything below
        self._inboxes: dict[str, Inbox] = {}  # by exchange
        self._collectors: dict[str, Collector] = {}  # by routing key

    def collect(self, key: str, put: Put) -> None:
        """Set the collector's consumer, which gets the replies that came before it. The consumer's thread."""
        with self._lock:
            collector = self._collectors.setdefault(key, Collector(self._clock.monotonic()))
        collector.mailbox.open(put)

    def address_for(self, reply_to: dict[str, Any], ticket: str) -> dict[str, Any]:
        """The `reply_to` of a command, with the queue's address.

        Raises:
            SQSError: the queue can't be created.
        """
        exchange, key = reply_to["exchange"], reply_to["routing_key"]
        address = self.inbox(exchange).address()
        now = self._clock.monotonic()
        with self._lock:
            if key not in self._collectors:
                # Drop collectors whose consumer never came.
                waiting = {
                    each: collector
                    for each, collector in self._collectors.items()
                    if collector.mailbox.is_open or now - collector.began < IDLE_SECONDS
                }
                self._collectors = {**waiting, key: Collector(now)}
            self._collectors[key].tickets.add(ticket)
        return {"exchange": exchange, "routing_key": f"{address}.{key}"}

    def inbox(self, exchange: str) -> Inbox:
        """The inbox for the exchange's replies, created if there is none."""
        with self._lock:
            inbox = self._inboxes.get(exchange)
            if inbox is None or not inbox.use():
                inbox = self._inboxes[exchange] = self._new_inbox(exchange)
                inbox.start()
        return inbox

    def _new_inbox(self, exchange: str) -> Inbox:
        return Inbox(
            self._queues,
            exchange,
            f"{os.getpid()}@{socket.gethostname()}",
            self._deliver,
            self._clock,
            wanted=lambda: any(each.mailbox.is_open for each in list(self._collectors.values())),
            idle_seconds=IDLE_SECONDS,
        )

    def forget(self, key: str) -> None:
        """Remove the collector and its consumer. The queue is kept for the next command."""
        with self._lock:
            self._collectors.pop(key, None)

    def close(self) -> list[Inbox]:
        """Stop collecting. Returns the inboxes, which the caller must end."""
        with self._lock:
            inboxes, self._inboxes, self._collectors = list(self._inboxes.values()), {}, {}
        return inboxes

    def _deliver(self, received: ReceivedMessage) -> None:
        message = self._decode(received)
        if message is None:
            return
        with self._lock:
            collector = self._collectors.get(message.routing_key)
        # kombu counts every reply that it gets towards its limit (kombu/pidbox.py: `Mailbox._collect`).
        if collector is not None and message.payload["headers"].get("ticket") in collector.tickets:
            collector.mailbox.deliver(message.id, message.payload, lambda: True)


#: A reply is retried after these seconds: SQS may not see a new queue for a second.
REPLY_PAUSES_SECONDS: Final = (0.1, 0.2, 0.3, 0.3, 0.5, 0.6)

#: How many replies a process sends at the same time.
MAX_IN_FLIGHT: Final = 4

#: How many characters of replies may wait; further replies are dropped.
MAX_CHARACTERS: Final = 16 * 1024 * 1024


@dataclass(slots=True, order=True)
class Reply:
    """A reply that is due at the monotonic instant `due`."""

    due: float
    url: str
    text: str
    failures: int = 0


class ReplySender:
    """The reply sender of a process. Any thread."""

    def __init__(self, queues: ControlQueues, clock: Clock, pump: Pump) -> None:
        self._queues = queues
        self._clock = clock
        self.lane: Lane[list[Reply]] = pump.lane("sends replies to commands", MAX_IN_FLIGHT, self)
        self._lock = self.lane.lock  # guards everything below
        self._waiting: list[Reply] = []  # a heap
        self._characters = 0  # of waiting replies
        self._untried = 0

    def reply(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        """Send a worker's reply in another thread. It is dropped if its caller is gone."""
        address, _, collector = routing_key.partition(".")
        url = self._queues.url_of(exchange, address)
        if url is None:
            logger.warning("dropped the reply to a command: %r is no address of a caller", routing_key)
            emit(ReplyDropped())
            return
        reply, reply_id = wire.body_of(message), uuid.uuid4().hex
        try:
            text = wire.encode(message, reply, exchange, collector, message_id=reply_id)
        except TooLargeError as error:
            errors = {node: {"error": f"the reply cannot be sent: {error}"} for node in reply}
            text = wire.encode(message, errors, exchange, collector, message_id=reply_id)
        with self._lock:
            fits = self._characters + len(text) <= MAX_CHARACTERS
            if fits:
                self._untried += 1
                self._put(Reply(self._clock.monotonic(), url, text))
        if fits:
            self.lane.start()
        else:
            logger.warning("dropped the reply to a command, since too many wait for SQS")
            emit(ReplyDropped())

    def close(self, timeout: float) -> None:
        """Send untried replies, for at most `timeout` seconds, and end the threads."""
        with self._lock:
            self.lane.wait_until(lambda: not self._untried, timeout)
        self.lane.stop()

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `pump.Work`
        return self._waiting[0].due if self._waiting else None

    def ready(self) -> int:
        return len(self._waiting)

    def take(self, now: float) -> list[Reply] | None:
        if not self._waiting or self._waiting[0].due > now:
            return None
        reply = heapq.heappop(self._waiting)
        self._characters -= len(reply.text)
        return [reply]

    def send(self, batch: list[Reply], _since: float) -> BatchResult:
        self._queues.sqs.send(batch[0].url, OutgoingMessage(batch[0].text))
        return BatchResult({})

    def conclude(self, batch: list[Reply], _since: float, failed: Mapping[int, SQSError]) -> None:
        """Retry, because SQS may not know a new queue yet; drop the reply after that."""
        (reply,), error = batch, failed.get(0)
        passes = isinstance(error, (*PASSING_ERRORS, QueueDoesNotExistError))
        again = passes and reply.failures < len(REPLY_PAUSES_SECONDS)
        with self._lock:
            self._untried -= not reply.failures
            if again:
                reply.due = self._clock.monotonic() + REPLY_PAUSES_SECONDS[reply.failures]
                reply.failures += 1
                self._put(reply)
                self.lane.wake()
        if error is None or again:
            return
        if passes:
            logger.info("dropped the reply to a command, since its caller has gone: %s", error)
        else:
            logger.warning("cannot send the reply to a command: %s", error)
        emit(ReplyDropped())

    def _put(self, reply: Reply) -> None:
        heapq.heappush(self._waiting, reply)
        self._characters += len(reply.text)
