"""A process's remote control: it sends commands, takes those to its workers, and sends and takes replies."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.aws.port import SQS, OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.event_exchanges import EventExchanges
from celery_sqs_visibility.control.inbox import Inbox
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    QueueDoesNotExistError,
    SQSError,
    TooLargeError,
    UnreadableError,
)
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.measurements import ReplyDropped
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.options import Options

logger = logging.getLogger(__name__)

#: What the names of exchanges for replies begin with (kombu/pidbox.py: `Mailbox.reply_exchange_fmt`).
REPLY: Final = "reply."

#: A process keeps the queue of its replies for this long after its last command, and then makes another.
IDLE_SECONDS: Final = 60.0

#: A reply is sent again after these seconds: SQS may not see a new queue for a second.
REPLY_PAUSES_SECONDS: Final = (0.1, 0.3, 0.6, 1.0)

#: Most replies that a process sends at once.
REPLY_THREADS: Final = 4

#: A process that ends waits this long for the deletion of its queues.
END_SECONDS: Final = 1.5

#: And so long for its last events: a worker says that it goes.
LAST_EVENTS_SECONDS: Final = 0.5

#: Gives a message to its consumer's thread, with whether it may still be handled: asked there.
Put = Callable[[dict[str, Any], Callable[[], bool]], None]


class Collector:
    """The replies to one command, for the consumer that may come later than they do."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.put: Put | None = None
        self.early: list[dict[str, Any]] = []


class RemoteControl:
    """Made once for a process and a broker. Any thread.

    Args:
        sqs: access to the control queues.
        options: the transport options.
        clock: the clock.
        in_worker: whether this is the main process of a worker.

    Attributes:
        queues: the directory.
        events: Celery's events.
    """

    def __init__(
        self,
        sqs: SQS,
        options: Options,
        clock: Clock = SYSTEM_CLOCK,
        *,
        in_worker: Callable[[], bool] = lambda: False,
    ) -> None:
        self.queues = ControlQueues(sqs, options.whole_control_prefix, options.queue_tags, clock)
        self._clock = clock
        self.events = EventExchanges(self.queues, clock, in_worker)
        self._pid = os.getpid()
        self._lock = ProcessLock()  # guards everything below
        self._inboxes: dict[str, Inbox] = {}  # of workers and receivers of events, by Celery's queue name
        self._reply_inboxes: dict[str, Inbox] = {}  # by exchange
        self._collectors: dict[str, Collector] = {}  # by routing key
        self._ended: list[Inbox] = []  # whose queues may not be deleted yet
        self._senders: ThreadPoolExecutor | None = None
        self._unreadable = False  # whether one has been logged
        atexit.register(self.close)

    def consume(
        self, queue: str, exchange: str, put: Put, is_full: Callable[[], bool] = lambda: False
    ) -> None:
        """Have `put` take what is published to the exchange for Celery's queue of that name. No request.

        While `is_full`, what is no reply stays at SQS.
        """
        if exchange.startswith(REPLY):
            self._collect(queue.removesuffix(f".{exchange}"), put)
            return
        node = queue.removesuffix(f".{exchange}")
        sweeps = (exchange, f"{REPLY}{exchange}")
        deliver = partial(self._deliver, put)
        inbox = Inbox(self.queues, exchange, node, deliver, self._clock, sweeps=sweeps, is_full=is_full)
        with self._lock:
            self._inboxes[queue] = inbox
        self.events.consume(queue, exchange, inbox)
        inbox.start()

    def cancel(self, queue: str, exchange: str) -> None:
        """Take no more for that queue, which is deleted soon; a reply's stays for the next command."""
        with self._lock:
            if exchange.startswith(REPLY):
                self._collectors.pop(queue.removesuffix(f".{exchange}"), None)
                return
            inbox = self._inboxes.pop(queue, None)
        self.events.cancel(queue)
        if inbox is not None:
            self._end(inbox)

    def expect_replies(self, exchange: str) -> None:
        """Begin to make the queue of this process's replies, if there is none."""
        self._reply_inbox(exchange)

    def broadcast(self, exchange: str, message: dict[str, Any]) -> None:
        """Send a command to the workers whom it names, or to all. The calling thread waits for SQS.

        Raises:
            SQSError: it could not be sent.
        """
        message = self.events.announced(message)
        command = wire.body_of(message)
        urls = self.queues.find(exchange, command.get("destination") or ())
        expires_in = None
        if reply_to := command.get("reply_to"):
            command = {**command, "reply_to": self._reply_address(reply_to)}
            expires = message["headers"].get(wire.EXPIRES)
            expires_in = expires - self._clock.wall() if expires else None
        self.queues.send(exchange, urls, wire.encode(message, command, exchange, "", expires_in))

    def reply(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        """Send a worker's answer, in another thread. A caller that has gone gets none."""
        address, _, collector = routing_key.partition(".")
        url = self.queues.url_of(exchange, address)
        if url is None:
            logger.warning("dropped the reply to a command, since %r is no address of one", routing_key)
            emit(ReplyDropped())
            return
        reply = wire.body_of(message)
        try:
            text = wire.encode(message, reply, exchange, collector)
        except TooLargeError as error:
            errors = {node: {"error": f"the reply cannot be sent: {error}"} for node in reply}
            text = wire.encode(message, errors, exchange, collector)
        with self._lock:
            if self._senders is None:
                self._senders = ThreadPoolExecutor(REPLY_THREADS, "sqs-control-reply")
            self._senders.submit(self._send_reply, url, text)

    def close(self, timeout: float = END_SECONDS) -> None:
        """End everything, and wait for the deletion of the queues. Again, it does nothing; nor in a fork."""
        if self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        self.events.close(LAST_EVENTS_SECONDS)
        with self._lock:
            inboxes = [*self._inboxes.values(), *self._reply_inboxes.values()]
            self._inboxes, self._reply_inboxes, self._collectors = {}, {}, {}
            senders, self._senders = self._senders, None
        for inbox in inboxes:
            self._end(inbox)
        if senders is not None:
            senders.shutdown(wait=False)
        until = self._clock.monotonic() + timeout
        for inbox in self._ended:
            inbox.join(max(0.0, until - self._clock.monotonic()))

    def _end(self, inbox: Inbox) -> None:
        inbox.stop()
        with self._lock:
            self._ended = [*(each for each in self._ended if each.is_deleting), inbox]

    def _collect(self, key: str, put: Put) -> None:
        """The collector's consumer is there: it gets what came before it. Its thread."""
        with self._lock:
            collector = self._collectors.setdefault(key, Collector(self._clock.monotonic()))
            collector.put, early = put, collector.early
        for payload in early:
            put(payload, lambda: True)

    def _reply_address(self, reply_to: dict[str, Any]) -> dict[str, Any]:
        exchange, key = reply_to["exchange"], reply_to["routing_key"]
        address = self._reply_inbox(exchange).address()
        now = self._clock.monotonic()
        with self._lock:
            # Without those whose consumer never came.
            waiting = {k: c for k, c in self._collectors.items() if c.put or now - c.began < IDLE_SECONDS}
            self._collectors = {**waiting, key: Collector(now)}
        return {"exchange": exchange, "routing_key": f"{address}.{key}"}

    def _reply_inbox(self, exchange: str) -> Inbox:
        with self._lock:
            inbox = self._reply_inboxes.get(exchange)
            if inbox is None or not inbox.use():
                inbox = self._reply_inboxes[exchange] = self._new_reply_inbox(exchange)
                inbox.start()
        return inbox

    def _new_reply_inbox(self, exchange: str) -> Inbox:
        return Inbox(
            self.queues,
            exchange,
            f"{self._pid}@{socket.gethostname()}",
            self._deliver_reply,
            self._clock,
            wanted=lambda: any(each.put for each in list(self._collectors.values())),
            idle_seconds=IDLE_SECONDS,
        )

    def _deliver(self, put: Put, received: ReceivedMessage) -> None:
        """A command, or an event. The inbox's thread."""
        message = self._decoded(received)
        if message is not None:
            self.events.heard(message.monitors)
            until = None if message.expires_in is None else self._clock.monotonic() + message.expires_in
            put(message.payload, partial(self._is_in_time, until))

    def _deliver_reply(self, received: ReceivedMessage) -> None:
        message = self._decoded(received)
        if message is None:
            return
        with self._lock:
            collector = self._collectors.get(message.routing_key)
            if collector is not None and collector.put is None:
                collector.early.append(message.payload)
        if collector is not None and collector.put is not None:
            collector.put(message.payload, lambda: True)

    def _is_in_time(self, until: float | None) -> bool:
        if until is None or self._clock.monotonic() <= until:
            return True
        logger.info("dropped a command, since its caller no longer waits for the reply")
        return False

    def _decoded(self, received: ReceivedMessage) -> wire.ControlMessage | None:
        try:
            return wire.decode(received)
        except UnreadableError as error:
            if not self._unreadable:
                self._unreadable = True
                logger.warning("dropped a message in a control queue unread: %s. (Said once.)", error)
            return None

    def _send_reply(self, url: str, text: str) -> None:
        """One of the senders' threads."""
        for pause in (*REPLY_PAUSES_SECONDS, None):
            try:
                self.queues.sqs.send(url, OutgoingMessage(text))
            except (*PASSING_ERRORS, QueueDoesNotExistError) as error:
                if pause is None:
                    logger.info("dropped the reply to a command, since its caller has gone: %s", error)
                    emit(ReplyDropped())
                    return
                threading.Event().wait(pause)
            except SQSError as error:
                logger.warning("cannot send the reply to a command: %s", error)
                emit(ReplyDropped())
                return
            else:
                return
