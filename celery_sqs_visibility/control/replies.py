"""Replies to this process's commands: one queue for all of them, and a consumer for each command."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.inbox import Inbox
from celery_sqs_visibility.control.mailbox import Mailbox, Put
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.policy.clock import Clock

#: A process keeps the queue of its replies for this long after its last command, and then makes another.
IDLE_SECONDS: Final = 60.0


class Collector:
    """The replies to one command, for the consumer that may come later than they do.

    Attributes:
        tickets: kombu's of the commands: a late reply to the command before has another.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.tickets: set[str] = set()
        self.mailbox = Mailbox()


class Replies:
    """The replies of a process. Any thread.

    Args:
        queues: the directory of control queues.
        decode: reads a received message; `None` if that is impossible.
        clock: the clock.
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
        self._lock = ProcessLock()  # guards what follows
        self._inboxes: dict[str, Inbox] = {}  # by exchange
        self._collectors: dict[str, Collector] = {}  # by routing key

    def collect(self, key: str, put: Put) -> None:
        """Add the collector's consumer, which gets the replies that came before it. Its thread."""
        with self._lock:
            collector = self._collectors.setdefault(key, Collector(self._clock.monotonic()))
        collector.mailbox.open(put)

    def address_for(self, reply_to: dict[str, Any], ticket: str) -> dict[str, Any]:
        """The `reply_to` of a command, with the queue's address.

        Raises:
            SQSError: the queue cannot be made.
        """
        exchange, key = reply_to["exchange"], reply_to["routing_key"]
        address = self.inbox(exchange).address()
        now = self._clock.monotonic()
        with self._lock:
            if key not in self._collectors:
                # Without those whose consumer never came.
                waiting = {
                    each: collector
                    for each, collector in self._collectors.items()
                    if collector.mailbox.is_open or now - collector.began < IDLE_SECONDS
                }
                self._collectors = {**waiting, key: Collector(now)}
            self._collectors[key].tickets.add(ticket)
        return {"exchange": exchange, "routing_key": f"{address}.{key}"}

    def inbox(self, exchange: str) -> Inbox:
        """The queue of the exchange's replies, created if there is none."""
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
        """Remove the collector and its consumer. The queue stays for the next command."""
        with self._lock:
            self._collectors.pop(key, None)

    def close(self) -> list[Inbox]:
        """Stop collecting; return the inboxes, which the caller ends."""
        with self._lock:
            inboxes, self._inboxes, self._collectors = list(self._inboxes.values()), {}, {}
        return inboxes

    def _deliver(self, received: ReceivedMessage) -> None:
        message = self._decode(received)
        if message is None:
            return
        with self._lock:
            collector = self._collectors.get(message.routing_key)
        # kombu counts each reply that it gets towards its limit (kombu/pidbox.py: `Mailbox._collect`).
        if collector is not None and message.payload["headers"].get("ticket") in collector.tickets:
            collector.mailbox.deliver(message.id, message.payload, lambda: True)
