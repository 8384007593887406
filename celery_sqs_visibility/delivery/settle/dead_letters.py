"""Dead letters: copies of messages that are given up, with the reason in a message attribute."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import Direct, Forward, Purpose
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.message_limits import (
    DATA_TYPE,
    escape_illegal,
    last_lines,
    message_bytes,
    truncated,
)
from celery_sqs_visibility.policy.payload_pointers import SIZE_ATTRIBUTES
from celery_sqs_visibility.policy.quotas import MESSAGE_ATTRIBUTES, MESSAGE_BYTES

logger = logging.getLogger(__name__)

#: The message attribute in which a worker describes a dead letter: a JSON object with the texts below. It is
#: a single one: a message may have ten, and those of its sender are never overwritten.
ATTRIBUTE: Final = "celery_dead_letter"

#: The texts, from most to least important: if the body leaves little space, the last ones are left out.
TEXTS: Final = (
    "reason",
    "source_queue",
    "message_id",
    "task_id",
    "task",
    "attempts",
    "receive_count",
    "worker",
    "first_received",
    "last_received",
    "exception",
    "traceback",
)

#: The members to send an attribute with; SQS does not implement the others that it returns.
SENT_MEMBERS = ("DataType", "StringValue", "BinaryValue")

#: The longest attribute, traceback, and line of a traceback.
TEXT_CHARACTERS = 1000
TRACEBACK_CHARACTERS = 4000
LINE_CHARACTERS = 400

NOT_SENT = (
    "cannot send to the dead-letter queue of %r, so messages that are given up stay, to be moved by SQS if "
    "the queue has a redrive policy: %s"
)

#: The group in a FIFO dead-letter queue of messages without a group.
FIFO_GROUP = "dead-letters"


class NoDeadLetterQueueError(QueueDoesNotExistError):
    """The queue was thought to have a dead-letter queue, but has none."""


class DeadLetters:
    """Makes dead letters, and finds the queues to send them to.

    Attributes:
        worker_name: Celery's name of this node; empty outside a worker.
    """

    def __init__(self, redrive: RedriveBook, worker_name: str = "") -> None:
        self._redrive = redrive
        self.worker_name = worker_name
        # URLs of the queues for which a refusal was logged. Each access is atomic: no lock.
        self._refused: set[str] = set()

    def forward(
        self,
        delivery: Delivery,
        reason: str,
        body: str,
        otherwise: Callable[[SQSError], Direct],
        details: Mapping[str, str] | None = None,
    ) -> Forward:
        """The settlement that sends a copy with this body to the dead-letter queue, then deletes the message.

        `details` are further texts of `TEXTS`. Any thread; makes no request.
        """
        texts = self._texts(delivery, reason, details or {})
        attributes = _fitting(delivery.message_attributes, MESSAGE_BYTES - message_bytes(body, {}))
        if len(attributes) < MESSAGE_ATTRIBUTES:
            attributes |= _description(texts, MESSAGE_BYTES - message_bytes(body, attributes))
        letter = OutgoingMessage(
            body=body,
            attributes=attributes,
            group_id=delivery.facts.group,
            deduplication_id=delivery.facts.message_id,
        )
        return Forward(Purpose.DEAD_LETTER, (letter,), otherwise, reason=reason)

    def addressed(
        self, queue: Queue, letters: Sequence[OutgoingMessage]
    ) -> tuple[Queue, list[OutgoingMessage]]:
        """The dead-letter queue of a queue, and the letters in the form that it accepts. A thread that sends.

        Raises:
            NoDeadLetterQueueError: there is none.
            SQSError: it could not be found.
        """
        target = self._redrive.dead_letter_queue(queue)
        if target is None:
            raise NoDeadLetterQueueError(f"queue {queue.name!r} has no dead-letter queue")
        if target.fifo:
            return target, [replace(each, group_id=each.group_id or FIFO_GROUP) for each in letters]
        return target, [replace(each, deduplication_id=None) for each in letters]

    def note(self, queue: Queue, refusal: SQSError | None) -> None:
        """Note whether the dead-letter queue accepts letters. A refusal is logged once. Any thread."""
        if refusal is None:
            self._refused.discard(queue.url)
        elif queue.url not in self._refused and not isinstance(refusal, NoDeadLetterQueueError):
            self._refused.add(queue.url)
            log_safely(logger.warning, NOT_SENT, queue.name, refusal)

    def _texts(self, delivery: Delivery, reason: str, details: Mapping[str, str]) -> dict[str, str]:
        facts = delivery.facts
        known: dict[str, str | None] = {
            "reason": reason,
            "task": facts.task,
            "task_id": facts.task_id,
            "worker": self.worker_name,
            "first_received": _iso(facts.first_received),
            "last_received": _iso(facts.received),
            "source_queue": facts.queue,
            "message_id": facts.message_id,
            "receive_count": str(facts.receive_count),
            **details,
        }
        return {name: _cut(name, text) for name in TEXTS if (text := known.get(name))}


def described(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a dead letter, from its message attributes; empty if no worker has described it."""
    try:
        found = json.loads(attributes[ATTRIBUTE]["StringValue"])
        return {name: found[name] for name in TEXTS if isinstance(found.get(name), str)}
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return {}  # missing, or written by somebody else


def of_the_sender(attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sender's attributes of a received message, without our description, in the form to send."""
    return {
        name: {member: value[member] for member in SENT_MEMBERS if member in value}
        for name, value in attributes.items()
        if name != ATTRIBUTE
    }


def _fitting(attributes: Mapping[str, Any], space: int) -> dict[str, dict[str, Any]]:
    """The sender's attributes that fit into `space` bytes: all, unless the body has grown."""
    kept: dict[str, dict[str, Any]] = {}
    # The attribute that marks a pointer to S3 comes first: without it the body is not recognised as one.
    ordered = sorted(of_the_sender(attributes).items(), key=lambda item: item[0] not in SIZE_ATTRIBUTES)
    for name, attribute in ordered:
        if (cost := message_bytes("", {name: attribute})) <= space:
            kept[name] = attribute
            space -= cost
    return kept


def _description(texts: dict[str, str], space: int) -> dict[str, dict[str, Any]]:
    """The attribute with as many of the texts as fit into `space` bytes; none if no text fits."""
    while texts:
        value = json.dumps(texts, ensure_ascii=False)
        attribute = {ATTRIBUTE: {"DataType": DATA_TYPE, "StringValue": value}}
        if message_bytes("", attribute) <= space:
            return attribute
        texts.popitem()
    return {}


def _cut(name: str, text: str) -> str:
    """A text in characters that SQS accepts, cut to its maximum length."""
    text = escape_illegal(text)
    if name == "traceback":
        return last_lines(text, TRACEBACK_CHARACTERS, LINE_CHARACTERS)
    return truncated(text, TEXT_CHARACTERS)


def _iso(seconds: float) -> str | None:
    """Seconds since the epoch as ISO 8601, UTC; `None` for 0, which means unknown."""
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
