"""A dead letter as it was received, and what it says."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kombu.serialization import loads

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.decoder import SOURCE_ARN, DecodedMessage
from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTES
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.options import DEFAULT_LIMITS
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer, ReadablePayloads, pointer_in
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.content_bounds import check_content
from celery_sqs_visibility.transport.decompression import inflate

#: The reason of such a message, as SQS's redrive has it.
MOVED_BY_SQS: Final = "received as often as maxReceiveCount allows, and moved by SQS"

#: Content types that may be decoded here. Not pickle: who looks at a message does not run it.
LEGIBLE_CONTENT: Final = frozenset({"application/json", "application/x-yaml", "application/x-msgpack"})


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        message: as it was received, with all attributes.
        content: the task's message, why there is none, or where in S3 it is.
    """

    message: ReceivedMessage
    content: DecodedMessage | UnreadableError | PayloadPointer

    @property
    def id(self) -> str:
        """SQS's id of the message in the dead-letter queue."""
        return self.message["MessageId"]

    @property
    def system(self) -> Mapping[str, str]:
        """The system attributes."""
        return self.message.get("Attributes", {})

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The message attributes."""
        return self.message.get("MessageAttributes", {})

    @property
    def is_copy(self) -> bool:
        """Whether a worker has copied it here, with a reason. SQS's own redrive adds no attributes."""
        return "reason" in self.attributes and SOURCE_ARN not in self.system

    @property
    def said(self) -> dict[str, str]:
        """The attributes with which a worker has described it; none if SQS has moved it."""
        attributes = self.attributes if self.is_copy else {}
        return {n: attributes[n].get("StringValue", "") for n in ATTRIBUTES if n in attributes}

    @property
    def task(self) -> str | None:
        """The task's name, as far as it is known."""
        return self.said.get("task") or getattr(self.content, "task", None)

    @property
    def task_id(self) -> str | None:
        """The task's id, likewise."""
        return self.said.get("task_id") or getattr(self.content, "task_id", None)

    @property
    def reason(self) -> str | None:
        """Why it was given up."""
        moved = MOVED_BY_SQS if SOURCE_ARN in self.system else None
        unreadable = str(self.content) if isinstance(self.content, UnreadableError) else None
        return self.said.get("reason") or unreadable or moved

    @property
    def source(self) -> str | None:
        """The queue that it was given up in: Celery's name or, of one that SQS moved, SQS's."""
        return self.said.get("source_queue") or self.system.get(SOURCE_ARN, "").rpartition(":")[2] or None

    def age(self, now: float) -> float:
        """Seconds since it was given up or, where SQS moved it, since it was sent."""
        return max(0.0, now - int(self.system.get("SentTimestamp", 0)) / 1000)

    def summary(self, now: float) -> dict[str, Any]:
        """What a list says of it."""
        attempts = self.said.get("attempts")
        return {
            "id": self.id,
            "task": self.task,
            "task_id": self.task_id,
            "exception": self.said.get("exception"),
            "reason": self.reason,
            "attempts": int(attempts) if attempts and attempts.isdigit() else None,
            "age_seconds": round(self.age(now)),
            "source_queue": self.source,
            "worker": self.said.get("worker"),
        }


def read_letter(queue: Queue, message: ReceivedMessage, readable: ReadablePayloads) -> Letter:
    """Decode a received message; `readable` are the payloads that it may point to. No request."""
    content: DecodedMessage | UnreadableError | PayloadPointer
    try:
        content = pointer_in(
            message["Body"], message.get("MessageAttributes", {}), readable
        ) or decode_message(queue, message)
    except UnreadableError as error:
        content = error
    return Letter(message, content)


def arguments(payload: Mapping[str, Any]) -> Any:
    """The body of a task's message: arguments, keyword arguments and what is embedded.

    Raises:
        Exception: it cannot be decoded, or is of a kind that is not decoded here.
    """
    body: Any = payload.get("body") or ""
    if payload["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if method := (payload.get("headers") or {}).get("compression"):
        body = inflate(body, method)
    kind, encoding = (str(payload.get(name) or "") for name in ("content-type", "content-encoding"))
    accept = set(LEGIBLE_CONTENT)
    check_content(body, kind, encoding, DEFAULT_LIMITS, accept)
    return loads(body, kind, encoding, accept=accept)
