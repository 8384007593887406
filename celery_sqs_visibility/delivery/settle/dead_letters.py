"""Messages that are given up: a copy with the reason to the dead-letter queue, before anything is deleted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Hide, Lapse, Release
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, RequestRefusedError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.message_attributes import (
    DATA_TYPE,
    beginning,
    fitting,
    last_lines,
    legal,
    message_bytes,
    size,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_ATTRIBUTES, MESSAGE_BYTES

logger = logging.getLogger(__name__)

#: The value of the option `on_exhausted` that is not "keep".
DELETE = "delete"

#: Seconds that a message which nobody may delete stays hidden each time: each return costs two requests.
KEPT = 3600

#: What a dead letter tells beside what its sender did, the most telling first: SQS takes ten attributes. Of a
#: failed task these are the ten before `message_id`, if its sender gave it none; where no task could be made
#: of the message there is room for all that is known.
ATTRIBUTES = (
    "reason",
    "exception",
    "traceback",
    "attempts",
    "task",
    "task_id",
    "worker",
    "first_received",
    "last_received",
    "source_queue",
    "message_id",
    "receive_count",
)

#: What a message attribute is sent with: SQS's other members are not implemented.
SENT = ("DataType", "StringValue", "BinaryValue")

#: Characters of one attribute, of a traceback, and of one of its lines.
TEXT_LENGTH = 1000
TRACEBACK_LENGTH = 4000
LINE_LENGTH = 400

#: The group of a message without one, in a FIFO dead-letter queue.
FIFO_GROUP = "dead-letters"


class DeadLetters:
    """Sends copies to the queues' dead-letter queues."""

    def __init__(self, redrive: RedriveBook, worker_name: str = "") -> None:
        self._redrive = redrive
        self._worker_name = worker_name
        self._lock = threading.Lock()  # guards _refused
        self._refused: set[str] = set()  # the queues whose trouble was told

    def send(self, delivery: Delivery, letter: DeadLetter) -> bool:
        """Send the copy; whether there is a dead-letter queue and it took it. A settler's thread.

        Raises:
            SQSError: it could not be sent now; try again.
        """
        queue = delivery.queue
        try:
            target = self._redrive.dead_letter_queue(queue)
            if target is None:
                return False
            target.sqs.send(target.url, self._copy(target, delivery, letter))
        except (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError) as error:
            with self._lock:
                told = queue.url in self._refused
                self._refused.add(queue.url)
            if not told:
                log_safely(
                    logger.warning,
                    "cannot send to the dead-letter queue of %r, so messages that are given up stay, to be "
                    "moved by SQS if the queue has a redrive policy: %s",
                    queue.name,
                    error,
                )
            return False
        with self._lock:
            self._refused.discard(queue.url)
        return True

    def _copy(self, target: Queue, delivery: Delivery, letter: DeadLetter) -> OutgoingMessage:
        texts = self._texts(delivery, letter)
        room = MESSAGE_BYTES - len(letter.body.encode("utf-8", "surrogatepass"))
        kept = _of_the_sender(delivery.message_attributes, room - size("reason", texts["reason"]))
        texts = dict(list(texts.items())[: MESSAGE_ATTRIBUTES - len(kept)])
        ours = fitting(texts, room - message_bytes("", kept), essential="reason", expendable="traceback")
        return OutgoingMessage(
            body=letter.body,
            attributes={
                **kept,
                **{name: {"DataType": DATA_TYPE, "StringValue": text} for name, text in ours.items()},
            },
            group_id=delivery.facts.group or (FIFO_GROUP if target.fifo else None),
            deduplication_id=delivery.facts.message_id if target.fifo else None,
        )

    def _texts(self, delivery: Delivery, letter: DeadLetter) -> dict[str, str]:
        facts = delivery.facts
        told: dict[str, str | None] = {
            "reason": letter.reason,
            "task": facts.task,
            "task_id": facts.task_id,
            "worker": self._worker_name,
            "first_received": _iso(facts.first_received),
            "last_received": _iso(facts.received),
            "source_queue": facts.queue,
            "message_id": facts.message_id,
            "receive_count": str(facts.receive_count),
            **letter.attributes,
        }
        return {name: _fair(name, text) for name in ATTRIBUTES if (text := told.get(name))}


def without_dead_letters(redrive: RedriveBook, queue: Queue, on_exhausted: str) -> Delete | Hide | Lapse:
    """What becomes of a message that is given up where there is no dead-letter queue, as far as we know."""
    if on_exhausted == DELETE and redrive.knows(queue):
        return Delete()
    return kept(redrive, queue)


def not_taken(redrive: RedriveBook, delivery: Delivery) -> Hide | Lapse | Release:
    """What becomes of a message that is given up where its dead-letter queue does not take it.

    It is visible at once as often as SQS's redrive policy hands it out, and moved by it then. What comes
    back after that, since the dead-letter queue is gone for one, is kept.
    """
    policy = redrive.peek(delivery.queue)
    if policy is not None and delivery.facts.receive_count <= policy.max_receive_count:
        return Release()
    return kept(redrive, delivery.queue)


def kept(redrive: RedriveBook, queue: Queue) -> Hide | Lapse:
    """Come back seldom, not to be run; where there may be a redrive policy, as often as without us."""
    return Hide(KEPT) if redrive.knows(queue) else Lapse()


def _of_the_sender(attributes: Mapping[str, Any], room: int) -> dict[str, dict[str, Any]]:
    """Of the sender's attributes as many as go into `room` bytes and leave one for the reason.

    Those of our own names are an earlier dead letter's, moved back and given up again.
    """
    kept: dict[str, dict[str, Any]] = {}
    for name, value in attributes.items():
        attribute = {key: value[key] for key in SENT if key in value}
        cost = message_bytes("", {name: attribute})
        if name not in ATTRIBUTES and cost <= room and len(kept) < MESSAGE_ATTRIBUTES - 1:
            kept[name] = attribute
            room -= cost
    return kept


def _fair(name: str, text: str) -> str:
    """A text as SQS takes it, cut."""
    text = legal(text)
    if name == "traceback":
        return last_lines(text, TRACEBACK_LENGTH, LINE_LENGTH)
    return beginning(text, TEXT_LENGTH)


def _iso(seconds: float) -> str | None:
    """Seconds since the epoch as ISO 8601, UTC; `None` for 0, which is unknown."""
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
