"""Remote control of a process: its own commands, the commands to its workers, and the replies to both."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from celery.signals import worker_process_shutdown

from celery_sqs_visibility.aws.attempts import attempt, pauses_until
from celery_sqs_visibility.aws.port import SQS, ReceivedMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.inbox import Inbox, IsInTime, Mailbox, Put, never
from celery_sqs_visibility.control.monitors import EventExchanges
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.control.replies import Replies, ReplySender
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    SQSError,
    UnreadableError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.control_names import Use, replies_of, use_of
from celery_sqs_visibility.policy.options import Options

logger = logging.getLogger(__name__)

#: How long a command is retried if SQS does not accept it. Celery's callers wait a second for replies.
BROADCAST_SECONDS: Final = 3.0

#: How long the queue of a cancelled consumer is kept: Celery resets its own consumer after an error.
KEPT_SECONDS: Final = 5.0

#: How long an ending process waits for the deletion of its queues,
END_SECONDS: Final = 1.5

#: and for its last events, such as `worker-offline`, and its last replies.
LAST_WORDS_SECONDS: Final = 0.5


@dataclass(slots=True, eq=False)
class Member:
    """A worker or a receiver of events in this process, with a queue of its own.

    Its consumer may be away for up to `KEPT_SECONDS`; `left` counts how often it left.
    """

    mailbox: Mailbox
    inbox: Inbox
    left: int = 0


class RemoteControl:
    """Remote control by one process over one broker. Any thread.

    Args:
        in_worker: whether this is the main process of a worker.
        use_here: returns what Celery uses an exchange for, by the names in this process's apps.
        pump: sends replies and events.
    """

    def __init__(
        self,
        sqs: SQS,
        options: Options,
        clock: Clock = SYSTEM_CLOCK,
        *,
        in_worker: Callable[[], bool] = lambda: False,
        use_here: Callable[[str], Use | None] = use_of,
        pump: Pump | None = None,
    ) -> None:
        self.queues = ControlQueues(sqs, options.whole_control_prefix, options.queue_tags, clock)
        self._clock = clock
        pump = pump or Pump(clock)
        self.events = EventExchanges(self.queues, clock, in_worker, use_here, pump)
        self._replies = Replies(self.queues, self._decoded, clock)
        self._reply_sender = ReplySender(self.queues, clock, pump)
        #: Sends a worker's answer, in another thread. If its caller is gone, it is dropped.
        self.reply = self._reply_sender.reply
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._lock = ProcessLock()  # guards everything below
        self._members: dict[str, Member] = {}  # by Celery's name of the queue
        self._ended: list[Inbox] = []  # whose queues may not be deleted yet
        self._commanded: set[str] = set()  # exchanges to which this process has sent commands
        self._unreadable = False  # whether an unreadable message has been logged
        atexit.register(self.close)
        worker_process_shutdown.connect(self._end_with_child)

    def consume(self, queue: str, exchange: str, put: Put, is_full: Callable[[], bool] = never) -> None:
        """Pass the exchange's messages for Celery's queue of that name to `put`. Makes no request.

        While `is_full`, messages other than replies stay in SQS. A consumer that comes back gets the messages
        that came meanwhile.
        """
        if use_of(exchange) is Use.REPLIES:
            self._replies.collect(queue.removesuffix(f".{exchange}"), put)
            return
        with self._lock:
            if (member := self._members.get(queue)) is not None:
                member.mailbox.open(put, is_full)
                return
            member = self._members[queue] = self._new_member(queue, exchange)
            member.mailbox.open(put, is_full)
        self.events.consume(queue, exchange, member.inbox)
        member.inbox.start()

    def cancel(self, queue: str, exchange: str) -> None:
        """Stop consuming. The queue is deleted soon, unless it is consumed again before.

        The queue for replies is kept for the next command.
        """
        if use_of(exchange) is Use.REPLIES:
            self._replies.forget(queue.removesuffix(f".{exchange}"))
            return
        with self._lock:
            if (member := self._members.get(queue)) is None:
                return
            member.mailbox.close()
            member.left += 1
        if start_thread(self._leave, "sqs-control-leave", queue, member, member.left) is None:
            self._remove(queue, member, member.left)

    def requeue(self, queue: str, payload: dict[str, Any], is_in_time: IsInTime) -> None:
        """Keep a message for the queue's next consumer, because its own was cancelled before it got it."""
        with self._lock:
            member = self._members.get(queue)
        if member is not None:
            member.mailbox.put(payload, is_in_time)

    def expect_replies(self, exchange: str) -> None:
        """Start to create the queue for this process's replies, if there is none."""
        self._replies.inbox(exchange)

    def broadcast(self, exchange: str, message: dict[str, Any]) -> None:
        """Send a command to the workers that it names, or to all. The calling thread waits for SQS.

        Raises:
            SQSError: the command was not sent, after retries of some seconds if the error is one that passes.
        """
        until = self._clock.monotonic() + BROADCAST_SECONDS
        self._commanded.add(exchange)
        # The caller waits that long after this method has returned (kombu/pidbox.py: `Mailbox._broadcast`).
        expires = (message.get("headers") or {}).get(wire.EXPIRES)
        expires_in = expires - self._clock.wall() if expires else None
        send = partial(self._broadcast, exchange, message, uuid.uuid4().hex, expires_in)
        attempt(send, PASSING_ERRORS, pauses_until(until, self._clock))

    def _broadcast(
        self, exchange: str, message: dict[str, Any], command_id: str, expires_in: float | None
    ) -> None:
        message = self.events.with_addresses(message)
        command = wire.body_of(message)
        urls = self.queues.find(exchange, command.get("destination") or ())
        if reply_to := command.get("reply_to"):
            command = {**command, "reply_to": self._replies.address_for(reply_to, command["ticket"])}
        else:
            expires_in = None
        text = wire.encode(message, command, exchange, "", expires_in=expires_in, message_id=command_id)
        self.queues.send(exchange, urls, text)

    def close(self, timeout: float = END_SECONDS) -> None:
        """End everything, and wait for the deletion of the queues. Idempotent; does nothing in a fork."""
        if self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        self._closed.set()
        self.events.close(LAST_WORDS_SECONDS)
        with self._lock:
            members, self._members = self._members, {}
        for inbox in (*(member.inbox for member in members.values()), *self._replies.close()):
            self._end(inbox)
        self._reply_sender.close(LAST_WORDS_SECONDS)
        until = self._clock.monotonic() + timeout
        for inbox in self._ended:
            inbox.join(max(0.0, until - self._clock.monotonic()))

    def _end_with_child(self, **_: object) -> None:
        """Close when a pool's process ends, which calls no exit hooks (billiard/pool.py: `_do_exit`)."""
        self.close()

    def close_first(self) -> None:
        """Close before other exit hooks run: at SIGHUP Celery's hook replaces the process.

        See celery/apps/worker.py: `install_worker_restart_handler`.
        """
        if self._pid == os.getpid():
            atexit.unregister(self.close)
            atexit.register(self.close)

    def _new_member(self, queue: str, exchange: str) -> Member:
        mailbox = Mailbox()
        inbox = Inbox(
            self.queues,
            exchange,
            queue.removesuffix(f".{exchange}"),
            partial(self._deliver, exchange, mailbox),
            self._clock,
            sweeps=(exchange, replies_of(exchange)),
            is_full=mailbox.is_full,
            moved=self._announce,
        )
        return Member(mailbox, inbox)

    def _leave(self, queue: str, member: Member, left: int) -> None:
        """Remove a member, unless its consumer comes back within `KEPT_SECONDS`. A thread."""
        self._closed.wait(KEPT_SECONDS)
        self._remove(queue, member, left)

    def _remove(self, queue: str, member: Member, left: int) -> None:
        with self._lock:
            is_back = member.mailbox.is_open or member.left != left
            if is_back or self._members.get(queue) is not member:
                return
            del self._members[queue]
        self.events.cancel(queue)
        self._end(member.inbox)

    def _announce(self) -> None:
        """Announce a monitor's new queue to workers, with the command of Celery's receivers. A thread."""
        for exchange in list(self._commanded if self.events.listens else ()):
            try:
                self.broadcast(exchange, wire.HEARTBEAT)
            except SQSError as error:
                logger.info("workers find a monitor's new queue later: %s", error)

    def _end(self, inbox: Inbox) -> None:
        inbox.stop()
        with self._lock:
            self._ended = [*(each for each in self._ended if each.is_deleting), inbox]

    def _deliver(self, exchange: str, mailbox: Mailbox, received: ReceivedMessage) -> None:
        """Deliver a command or an event. The inbox's thread."""
        is_command = use_of(exchange) is Use.COMMANDS
        message = self._decoded(received, replies_of(exchange) if is_command else None)
        if message is not None:
            self.events.add_monitors(message.monitors)
            until = None if message.expires_in is None else self._clock.monotonic() + message.expires_in
            mailbox.deliver(message.id, message.payload, partial(self._is_in_time, until))

    def _is_in_time(self, until: float | None) -> bool:
        if until is None or self._clock.monotonic() <= until:
            return True
        logger.info("dropped a command, since its caller no longer waits for the reply")
        return False

    def _decoded(
        self, received: ReceivedMessage, reply_exchange: str | None = None
    ) -> wire.ControlMessage | None:
        try:
            return wire.decode(received, reply_exchange)
        except UnreadableError as error:
            if not self._unreadable:
                self._unreadable = True
                logger.warning("dropped a message in a control queue unread: %s. (Said once.)", error)
            return None
