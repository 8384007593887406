"""One queue of the fake SQS: what happens to its messages, with the time as an argument and no lock.

Times are (monotonic, wall) seconds: visibility counts on the first, timestamps show the second.
Source of the rules: "Amazon SQS visibility timeout", "FIFO queue delivery logic" and the API reference.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery_sqs_visibility.aws.redrive import Redrive, parse_redrive_policy
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, RequestRefusedError
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_sqs_visibility.aws.port import OutgoingMessage

#: Seconds during which a FIFO queue takes a second message with the same deduplication id for the first.
DEDUPLICATION_SECONDS: Final = 300

#: Seconds during which a FIFO queue answers the same ReceiveRequestAttemptId with the same messages.
ATTEMPT_SECONDS: Final = 300

_sequence = itertools.count(1)


class Now(NamedTuple):
    """One instant, on both clocks."""

    monotonic: float
    wall: float


@dataclass(slots=True, eq=False)
class Message:
    """One message in a queue. `handle` is the newest; `received_at` and `visible_at` are monotonic.

    `attempt_id` is that of its latest receive, as long as its visibility was not changed since.
    """

    id: str
    body: str
    message_attributes: Mapping[str, Any]
    visible_at: float
    system: dict[str, str]
    group: str | None = None
    received_at: float = 0.0
    receive_count: int = 0
    handle: str | None = None
    attempt_id: str | None = None
    delayed: bool = False

    def system_attributes(self) -> dict[str, str]:
        """Return all of MessageSystemAttributes."""
        return {**self.system, "ApproximateReceiveCount": str(self.receive_count)}


@dataclass(slots=True, eq=False)
class FakeQueue:
    """A queue: its attributes as CreateQueue got them, and its messages in the order they were sent."""

    name: str
    url: str
    arn: str
    attributes: dict[str, str]
    messages: list[Message] = field(default_factory=list)
    _handles: dict[str, Message] = field(default_factory=dict)
    _recently_sent: dict[str, tuple[float, str]] = field(default_factory=dict)
    _attempts: dict[str, tuple[float, list[Message]]] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        """Whether order within a group is kept."""
        return self.attributes.get("FifoQueue") == "true"

    @property
    def redrive(self) -> Redrive | None:
        """The redrive policy."""
        return parse_redrive_policy(self.attributes)

    def send(self, message: OutgoingMessage, now: Now) -> str:
        """Add a message, unless it is a duplicate of one sent lately; return its id."""
        deduplication_id = self._deduplication_id(message)
        if deduplication_id is not None:
            sent_at, known = self._recently_sent.get(deduplication_id, (-float(DEDUPLICATION_SECONDS), ""))
            if known and now.monotonic - sent_at < DEDUPLICATION_SECONDS:
                return known
        delay = int(self.attributes.get("DelaySeconds", "0")) if message.delay is None else message.delay
        system = {"SenderId": "AIDAMEMORY", "SentTimestamp": str(int(now.wall * 1000))}
        if message.group_id is not None:
            system["MessageGroupId"] = message.group_id
        if deduplication_id is not None:
            system["MessageDeduplicationId"] = deduplication_id
            system["SequenceNumber"] = f"{next(_sequence):020}"
        new = Message(
            id=str(uuid.uuid4()),
            body=message.body,
            message_attributes=dict(message.attributes),
            visible_at=now.monotonic + delay,
            system=system,
            group=message.group_id if self.fifo else None,
            delayed=delay > 0,
        )
        self.messages.append(new)
        if deduplication_id is not None:
            self._recently_sent[deduplication_id] = now.monotonic, new.id
        return new.id

    def _deduplication_id(self, message: OutgoingMessage) -> str | None:
        if not self.fifo:
            return None
        if message.deduplication_id is None and self.attributes.get("ContentBasedDeduplication") == "true":
            return hashlib.sha256(message.body.encode()).hexdigest()
        if message.deduplication_id is None:
            raise RequestRefusedError(
                "The queue should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly",
                code="InvalidParameterValue",
                action="SendMessage",
            )
        return message.deduplication_id

    def receive(
        self, limit: int, timeout: int | None, now: Now, attempt_id: str | None = None
    ) -> tuple[list[Message], list[Message]]:
        """Hand out what is visible, and hide it; to the same attempt the same messages once more.

        Returns:
            The messages received, and those that left this queue for its dead-letter queue instead.
        """
        seconds = int(self.attributes.get("VisibilityTimeout", "30")) if timeout is None else timeout
        if attempt_id is None:
            return self._hand_out(limit, seconds, now)
        began, received = self._attempts.get(attempt_id, (now.monotonic, []))
        dead: list[Message] = []
        known = received and now.monotonic - began < ATTEMPT_SECONDS
        if not (known and all(self._is_as_received(message, attempt_id) for message in received)):
            began, (received, dead) = now.monotonic, self._hand_out(limit, seconds, now)
        for message in received:
            message.attempt_id, message.visible_at = attempt_id, now.monotonic + seconds
        self._attempts[attempt_id] = began, received
        return received, dead

    def _is_as_received(self, message: Message, attempt_id: str) -> bool:
        """Whether nobody has deleted it, changed its visibility or received it since that attempt did."""
        return message in self.messages and message.attempt_id == attempt_id

    def _hand_out(self, limit: int, seconds: int, now: Now) -> tuple[list[Message], list[Message]]:
        received: list[Message] = []
        dead: list[Message] = []
        redrive = self.redrive
        for message in self._available(now):
            if redrive is not None and message.receive_count >= redrive.max_receive_count:
                dead.append(message)
                continue
            if len(received) == limit:
                break
            message.handle, message.attempt_id = uuid.uuid4().hex, None
            self._handles[message.handle] = message
            message.delayed = False
            message.receive_count += 1
            message.received_at = now.monotonic
            message.visible_at = now.monotonic + seconds
            message.system.setdefault("ApproximateFirstReceiveTimestamp", str(int(now.wall * 1000)))
            received.append(message)
        self.messages = [message for message in self.messages if message not in dead]
        return received, dead

    def _available(self, now: Now) -> list[Message]:
        """Return what a receive may hand out: of a FIFO group nothing while a message of it is in flight."""
        hidden = [m for m in self.messages if m.visible_at > now.monotonic]
        locked = {m.group for m in hidden if m.group is not None}
        return [m for m in self.messages if m.visible_at <= now.monotonic and m.group not in locked]

    def supersede(self, message: Message, source_arn: str, now: Now) -> None:
        """Take a message that another queue gave up. It starts anew here, with its id and age."""
        message.system.pop("ApproximateFirstReceiveTimestamp", None)
        message.system["DeadLetterQueueSourceArn"] = source_arn
        message.handle, message.receive_count, message.visible_at = None, 0, now.monotonic
        self.messages.append(message)

    def delete(self, handle: str) -> None:
        """Delete the message, if this is its newest handle; an older one is answered yes and does nothing."""
        message = self._message(handle, "DeleteMessageBatch")
        if message.handle == handle and message in self.messages:
            self.messages.remove(message)

    def change_visibility(self, handle: str, seconds: int, now: Now) -> None:
        """Hide the message for `seconds` from now. A message that is visible again is hidden again."""
        action = "ChangeMessageVisibilityBatch"
        message = self._message(handle, action)
        if message.handle != handle or message not in self.messages:
            raise ReceiptHandleInvalidError(
                "Message does not exist or is not available for visibility timeout change.",
                code="InvalidParameterValue",
                action=action,
            )
        total = now.monotonic - message.received_at + seconds
        if not 0 <= seconds <= VISIBILITY_HORIZON or total > VISIBILITY_HORIZON:
            raise RequestRefusedError(
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total "
                f"VisibilityTimeout for the message is beyond the limit [{VISIBILITY_HORIZON} seconds].",
                code="InvalidParameterValue",
                action=action,
            )
        message.visible_at, message.attempt_id = now.monotonic + seconds, None

    def _message(self, handle: str, action: str) -> Message:
        if handle not in self._handles:
            raise ReceiptHandleInvalidError(
                "The input receipt handle is invalid.", code="ReceiptHandleIsInvalid", action=action
            )
        return self._handles[handle]

    def next_change(self, now: Now) -> float:
        """Return how many seconds from now the next hidden message shows; infinity if none is hidden."""
        hidden = (m.visible_at - now.monotonic for m in self.messages if m.visible_at > now.monotonic)
        return min(hidden, default=float("inf"))

    def counts(self, now: Now) -> dict[str, str]:
        """Return the three attributes that say how many messages there are."""
        hidden = [m for m in self.messages if m.visible_at > now.monotonic]
        delayed = sum(m.delayed for m in hidden)
        return {
            "ApproximateNumberOfMessages": str(len(self.messages) - len(hidden)),
            "ApproximateNumberOfMessagesNotVisible": str(len(hidden) - delayed),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
