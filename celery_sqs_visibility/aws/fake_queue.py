"""A queue of the fake SQS: its messages and their visibility. Without a clock or a lock.

Sources: "Amazon SQS visibility timeout", "FIFO queue delivery logic" and the API reference.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery_sqs_visibility.aws.fake_rules import invalid_handle, refused
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import Redrive, parse_redrive_policy
from celery_sqs_visibility.policy.quotas import (
    DEDUPLICATION_SECONDS,
    DEFAULT_RETENTION_SECONDS,
    VISIBILITY_HORIZON_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Seconds during which a FIFO queue returns the same messages for the same ReceiveRequestAttemptId.
ATTEMPT_SECONDS: Final = 300

NOT_IN_FLIGHT: Final = "Message does not exist or is not available for visibility timeout change."

_sequence = itertools.count(1)


class LateChange(enum.Enum):
    """Effect of a visibility change after the visibility timeout."""

    DOES_NOTHING = "it succeeds, but the message stays visible"
    HIDES = "it hides the message again"
    IS_REFUSED = "it is refused"


class Now(NamedTuple):
    """An instant on both clocks: visibility uses the monotonic clock, timestamps the wall clock."""

    monotonic: float
    wall: float


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message in a queue. Instants are monotonic.

    Attributes:
        sent_at: start of the retention period.
        handle: the newest receipt handle.
        attempt_id: that of the latest receive, until the visibility is changed.
        place: the order of arrival in its queue.
    """

    id: str
    body: str
    message_attributes: Mapping[str, Any]
    visible_at: float
    system: dict[str, str]
    sent_at: float
    group: str | None = None
    received_at: float = 0.0
    receive_count: int = 0
    handle: str | None = None
    attempt_id: str | None = None
    delayed: bool = False
    place: int = 0

    def system_attributes(self) -> dict[str, str]:
        """Return all system attributes."""
        return {**self.system, "ApproximateReceiveCount": str(self.receive_count)}


@dataclass(slots=True, eq=False)
class FakeQueue:
    """A queue of a `FakeSQS`, which holds its lock during all calls.

    A large backlog slows down only counts, moves to another queue, and receives of a FIFO queue.
    """

    url: str
    arn: str
    attributes: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)
    _messages: dict[StoredMessage, None] = field(default_factory=dict)
    # Heaps of a standard queue, by place, and by `visible_at` and place. Entries of messages that were
    # deleted or hidden again are skipped.
    _visible: list[tuple[int, StoredMessage]] = field(default_factory=list)
    _timed: list[tuple[float, int, StoredMessage]] = field(default_factory=list)
    _places: Iterator[int] = field(default_factory=itertools.count)
    _handles: dict[str, StoredMessage] = field(default_factory=dict)
    _recently_sent: dict[tuple[str | None, str], tuple[float, str]] = field(default_factory=dict)
    _attempts: dict[str, tuple[float, list[StoredMessage]]] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        """Return whether this is a FIFO queue."""
        return self.attributes.get("FifoQueue") == "true"

    @property
    def redrive(self) -> Redrive | None:
        """Return the redrive policy, if any."""
        return parse_redrive_policy(self.attributes)

    @property
    def messages(self) -> list[StoredMessage]:
        """Return all messages, including hidden ones, in the order they were sent."""
        return list(self._messages)

    def purge(self) -> None:
        """Delete all messages, and forget their deduplication ids."""
        self._recently_sent.clear()
        self._messages.clear()
        self._visible.clear()
        self._timed.clear()

    def send(self, message: OutgoingMessage, now: Now) -> str:
        """Add a message, unless it is a duplicate. Returns its id, or that of the original."""
        system = {"SenderId": "AIDAMEMORY", "SentTimestamp": str(int(now.wall * 1000))}
        if message.group_id is not None:
            system["MessageGroupId"] = message.group_id
        new_id = str(uuid.uuid4())
        if self.fifo:
            deduplication_id = self._deduplication_id(message)
            by_group = self.attributes.get("DeduplicationScope") == "messageGroup"
            key = message.group_id if by_group else None, deduplication_id
            sent_at, original = self._recently_sent.get(key, (0.0, ""))
            if original and now.monotonic - sent_at < DEDUPLICATION_SECONDS:
                return original
            self._recently_sent[key] = now.monotonic, new_id
            system |= {"MessageDeduplicationId": deduplication_id, "SequenceNumber": f"{next(_sequence):020}"}
        delay = message.delay_at(now.wall)
        if delay is None or (self.fifo and delay == 0):
            delay = int(self.attributes.get("DelaySeconds", "0"))
        self._add(
            StoredMessage(
                id=new_id,
                body=message.body,
                message_attributes=dict(message.attributes),
                visible_at=now.monotonic + delay,
                system=system,
                sent_at=now.monotonic,
                group=message.group_id if self.fifo else None,
                delayed=delay > 0,
            )
        )
        return new_id

    def _add(self, message: StoredMessage) -> None:
        message.place = next(self._places)
        self._messages[message] = None
        self._time(message)

    def _time(self, message: StoredMessage) -> None:
        """Note that a message was added, or its `visible_at` set."""
        if not self.fifo:
            heapq.heappush(self._timed, (message.visible_at, message.place, message))

    def _deduplication_id(self, message: OutgoingMessage) -> str:
        if message.deduplication_id is not None:
            return message.deduplication_id
        return hashlib.sha256(message.body.encode()).hexdigest()

    def receive(
        self, limit: int, timeout: int | None, now: Now, attempt_id: str | None = None
    ) -> tuple[list[StoredMessage], list[StoredMessage]]:
        """Return visible messages and hide them. A repeated attempt gets the same messages again.

        Returns:
            The messages received, and those that go to the dead-letter queue instead.
        """
        seconds = int(self.attributes.get("VisibilityTimeout", "30")) if timeout is None else timeout
        if attempt_id is None:
            return self._hand_out(limit, seconds, now)
        began, received = self._attempts.get(attempt_id, (now.monotonic, []))
        dead: list[StoredMessage] = []
        known = received and now.monotonic - began < ATTEMPT_SECONDS
        # Unless one was deleted, received again or its visibility changed since.
        if not (known and all(m in self._messages and m.attempt_id == attempt_id for m in received)):
            began, (received, dead) = now.monotonic, self._hand_out(limit, seconds, now)
        for message in received:
            message.attempt_id, message.visible_at = attempt_id, now.monotonic + seconds
            self._time(message)
        self._attempts[attempt_id] = began, received
        return received, dead

    def _hand_out(
        self, limit: int, seconds: int, now: Now
    ) -> tuple[list[StoredMessage], list[StoredMessage]]:
        received: list[StoredMessage] = []
        dead: list[StoredMessage] = []
        redrive = self.redrive
        available = iter(self._available(now)) if self.fifo else self._first_visible(now)
        while len(received) < limit and (message := next(available, None)) is not None:
            if redrive is not None and message.receive_count >= redrive.max_receive_count:
                dead.append(message)
                del self._messages[message]
                continue
            message.handle, message.attempt_id = uuid.uuid4().hex, None
            self._handles[message.handle] = message
            message.delayed = False
            message.receive_count += 1
            message.received_at = now.monotonic
            message.visible_at = now.monotonic + seconds
            self._time(message)
            message.system.setdefault("ApproximateFirstReceiveTimestamp", str(int(now.wall * 1000)))
            received.append(message)
        return received, dead

    def _first_visible(self, now: Now) -> Iterator[StoredMessage]:
        """Yield visible messages of a standard queue, and remove them from the heap."""
        while self._timed and self._timed[0][0] <= now.monotonic:
            at, place, message = heapq.heappop(self._timed)
            if message in self._messages and message.visible_at == at:
                heapq.heappush(self._visible, (place, message))
        before = None  # duplicate entries of a message are adjacent
        while self._visible:
            _, message = heapq.heappop(self._visible)
            if message is not before and message in self._messages and message.visible_at <= now.monotonic:
                if self._has_expired(message, now):
                    del self._messages[message]
                else:
                    yield message
            before = message

    def _available(self, now: Now) -> list[StoredMessage]:
        """Return visible messages group by group, without those behind a hidden message of their group."""
        closed: set[str] = set()
        by_group: dict[str | StoredMessage, list[StoredMessage]] = {}
        for message in list(self._messages):
            if self._has_expired(message, now):
                del self._messages[message]
            elif message.visible_at > now.monotonic:
                closed.add(message.group or "")
            elif message.group is None or message.group not in closed:
                by_group.setdefault(message.group or message, []).append(message)
        return [message for group in by_group.values() for message in group]

    def _has_expired(self, message: StoredMessage, now: Now) -> bool:
        retention = float(self.attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))
        return now.monotonic - message.sent_at >= retention

    def _hidden(self, now: Now) -> list[StoredMessage]:
        return [message for message in self._messages if message.visible_at > now.monotonic]

    def add_dead_letter(self, message: StoredMessage, source_arn: str, now: Now) -> None:
        """Add a message from the queue `source_arn`. It keeps its id, age and receive count."""
        message.system["DeadLetterQueueSourceArn"] = source_arn
        message.handle, message.visible_at = None, now.monotonic
        if self.fifo:  # here the retention period starts anew
            message.sent_at = now.monotonic
        self._add(message)

    def move_to(self, target: FakeQueue, now: Now) -> int:
        """Move visible messages to another queue as new messages. Returns their number."""
        moving = self._available(now)
        for message in moving:
            attributes = message.message_attributes
            new = OutgoingMessage(message.body, attributes, None, message.group, str(uuid.uuid4()))
            target.send(new, now)
            del self._messages[message]
        return len(moving)

    def delete(self, handle: str, now: Now, *, by_any: bool = False) -> None:
        """Delete the message if this is its newest handle. An older one does nothing, unless `by_any` is set.

        A FIFO queue refuses older and expired handles.
        """
        action = "DeleteMessageBatch"
        message = self._message(handle, action)
        if message not in self._messages:
            return
        if self.fifo and (message.handle != handle or message.visible_at <= now.monotonic):
            raise invalid_handle(action, "The receipt handle has expired", "ReceiptHandleIsInvalid")
        if message.handle == handle or by_any:
            del self._messages[message]

    def change_visibility(self, handle: str, seconds: int, now: Now, late: LateChange) -> None:
        """Hide the message for `seconds` from now. Only FIFO queues refuse older handles.

        `late` says what happens if the message is visible again.
        """
        action = "ChangeMessageVisibilityBatch"
        message = self._message(handle, action)
        if message not in self._messages or (self.fifo and message.handle != handle):
            raise invalid_handle(action, NOT_IN_FLIGHT)
        total = now.monotonic - message.received_at + seconds
        if not 0 <= seconds <= VISIBILITY_HORIZON_SECONDS or total > VISIBILITY_HORIZON_SECONDS:
            reason = (
                "Total VisibilityTimeout for the message is beyond the limit "
                f"[{VISIBILITY_HORIZON_SECONDS} seconds]."
            )
            raise refused(
                action, f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: {reason}"
            )
        if message.visible_at <= now.monotonic and late is not LateChange.HIDES:
            if late is LateChange.IS_REFUSED:
                raise invalid_handle(action, NOT_IN_FLIGHT)
            return
        message.visible_at, message.attempt_id = now.monotonic + seconds, None
        self._time(message)

    def _message(self, handle: str, action: str) -> StoredMessage:
        if handle not in self._handles:
            sentence = f'The input receipt handle "{handle}" is not a valid receipt handle.'
            raise invalid_handle(action, sentence, "ReceiptHandleIsInvalid")
        return self._handles[handle]

    def next_change(self, now: Now) -> float:
        """Return the seconds until a hidden message becomes visible; infinity if none is hidden."""
        if self.fifo:
            return min((m.visible_at - now.monotonic for m in self._hidden(now)), default=float("inf"))
        while self._timed:
            at, _, message = self._timed[0]
            if message in self._messages and message.visible_at == at:
                return at - now.monotonic
            heapq.heappop(self._timed)
        return float("inf")

    def counts(self, now: Now) -> dict[str, str]:
        """Return the three attributes that count messages."""
        for message in [message for message in self._messages if self._has_expired(message, now)]:
            del self._messages[message]
        hidden = self._hidden(now)
        delayed = sum(message.delayed for message in hidden)
        return {
            "ApproximateNumberOfMessages": str(len(self._messages) - len(hidden)),
            "ApproximateNumberOfMessagesNotVisible": str(len(hidden) - delayed),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
