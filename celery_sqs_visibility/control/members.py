"""Members of remote control in this process: workers and receivers of events, each with its own queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control.inbox import Inbox
from celery_sqs_visibility.control.mailbox import IsInTime, Mailbox, Put
from celery_sqs_visibility.control.monitors import EventExchanges
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.control_names import replies_of

#: A queue stays for so long after its consumer was cancelled.
KEPT_SECONDS: Final = 5.0


@dataclass(slots=True, eq=False)
class Member:
    """A member. Its consumer may be gone for up to `KEPT_SECONDS`; `left` counts how often it went."""

    mailbox: Mailbox
    inbox: Inbox
    left: int = 0


class Members:
    """The members of a process. Any thread.

    Args:
        queues: the directory of control queues.
        events: Celery's events, which need the queues of receivers.
        clock: the clock.
                deliver: takes a message that a queue of an exchange has received, for its mailbox.
        end: ends an inbox.
        moved: called in a thread when a queue of events was made anew: other processes know the one before.
    """

    def __init__(
        self,
        queues: ControlQueues,
        events: EventExchanges,
        clock: Clock,
        deliver: Callable[[str, Mailbox, ReceivedMessage], None],
        end: Callable[[Inbox], None],
        moved: Callable[[], None],
    ) -> None:
        self._queues = queues
        self._events = events
        self._clock = clock
        self._deliver = deliver
        self._end = end
        self._moved = moved
        self._closed = threading.Event()
        self._lock = ProcessLock()  # guards what follows
        self._members: dict[str, Member] = {}  # by Celery's name of the queue

    def consume(self, queue: str, exchange: str, put: Put, is_full: Callable[[], bool]) -> None:
        """Add a consumer. One that comes again gets the messages that came meanwhile. No request."""
        with self._lock:
            if (member := self._members.get(queue)) is not None:
                member.mailbox.open(put, is_full)
                return
            member = self._members[queue] = self._new(queue, exchange, Mailbox(put, is_full))
        self._events.consume(queue, exchange, member.inbox)
        member.inbox.start()

    def cancel(self, queue: str) -> None:
        """Remove the consumer, which may come back: Celery resets its own after an error and a reconnect."""
        with self._lock:
            if (member := self._members.get(queue)) is None:
                return
            member.mailbox.close()
            member.left += 1
        if start_thread(self._leave, "sqs-control-leave", queue, member, member.left) is None:
            self._remove(queue, member, member.left)

    def hand_on(self, queue: str, payload: dict[str, Any], is_in_time: IsInTime) -> None:
        """Keep an unhandled message for the queue's next consumer, if one comes."""
        with self._lock:
            member = self._members.get(queue)
        if member is not None:
            member.mailbox.put(payload, is_in_time)

    def close(self) -> list[Inbox]:
        """Forget all members. The caller ends their inboxes."""
        self._closed.set()
        with self._lock:
            members, self._members = self._members, {}
        return [each.inbox for each in members.values()]

    def _new(self, queue: str, exchange: str, mailbox: Mailbox) -> Member:
        node = queue.removesuffix(f".{exchange}")
        sweeps = (exchange, replies_of(exchange))
        deliver = partial(self._deliver, exchange, mailbox)
        inbox = Inbox(
            self._queues,
            exchange,
            node,
            deliver,
            self._clock,
            sweeps=sweeps,
            is_full=mailbox.is_full,
            moved=self._moved,
        )
        return Member(mailbox, inbox)

    def _leave(self, queue: str, member: Member, left: int) -> None:
        """Wait whether the consumer comes back, and else remove its member. A thread."""
        self._closed.wait(KEPT_SECONDS)
        self._remove(queue, member, left)

    def _remove(self, queue: str, member: Member, left: int) -> None:
        with self._lock:
            is_back = member.mailbox.is_open or member.left != left
            if is_back or self._members.get(queue) is not member:
                return
            del self._members[queue]
        self._events.cancel(queue)
        self._end(member.inbox)
