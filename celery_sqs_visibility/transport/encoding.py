"""kombu's wire format on SQS, for messages that are published; `codec` reads them.

A body is kombu's message as JSON, base64-encoded or not (kombu/transport/SQS/__init__.py: `_put`).
"""

from __future__ import annotations

import binascii
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kombu.utils.json import JSONEncoder

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.policy.eta import DelayLimits
from celery_sqs_visibility.policy.message_limits import check_names, checked_id
from celery_sqs_visibility.transport.delays import delay_of, eta_of, headers_with_eta, without_delay

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.topics import Topic  # for fanout only

#: As kombu's `dumps`, without a new encoder for each message.
_encode: Final = JSONEncoder().encode

#: The group of a FIFO queue's messages that name none, as in kombu.
DEFAULT_GROUP: Final = "default"

#: Of a queue of which nothing is known.
NO_LIMITS: Final = DelayLimits()


def encode_message(
    message: Mapping[str, Any],
    queue: Queue | Topic,
    *,
    base64_encoded: bool,
    limits: DelayLimits = NO_LIMITS,
) -> OutgoingMessage:
    """Convert kombu's message to the message to send.

    The properties `message_attributes`, `MessageGroupId`, `MessageDeduplicationId` and `delay_seconds` (or
    `DelaySeconds`) become SQS's, and so does an ETA within `limits`. A message to a FIFO queue without a
    deduplication id gets one, which is stored in `message`: after an error kombu publishes the same message
    again, although SQS may have it already.

    Raises:
        ETATooFarError: SQS would delete the message before its time.
        InvalidIdError: SQS refuses its group, or workers the task's id.
    """
    properties = dict(message.get("properties", {}))
    attributes = properties.pop("message_attributes", None) or {}
    group = properties.get("MessageGroupId")
    if queue.fifo:
        group = group or DEFAULT_GROUP
    headers = message.get("headers") or {}
    if "task" in headers:
        check_names(headers)
    eta = eta_of(headers_with_eta(message))
    if isinstance(queue, Queue):
        delay, visible_at = delay_of(properties, eta, queue, limits)
    else:  # workers hide a message that came by a topic until its ETA
        delay, visible_at = without_delay(properties, queue.exchange, "SNS has no delays")
    text = _encode({**message, "properties": properties})
    return OutgoingMessage(
        body=in_base64(text) if base64_encoded else text,
        attributes=attributes,
        delay=delay,
        group_id=None if group is None else checked_id("MessageGroupId", group, _name_of(queue)),
        deduplication_id=_deduplication_id(message) if queue.fifo else None,
        visible_at=visible_at,
    )


def in_base64(text: str) -> str:
    """Text in base64, which any character survives."""
    return binascii.b2a_base64(text.encode(), newline=False).decode()


def _name_of(target: Queue | Topic) -> str:
    return target.name if isinstance(target, Queue) else target.exchange


def _deduplication_id(message: Mapping[str, Any]) -> str:
    """The message's own, or a new one that the message keeps."""
    properties = message["properties"]
    if not properties.get("MessageDeduplicationId"):
        properties["MessageDeduplicationId"] = str(uuid.uuid4())
    return str(properties["MessageDeduplicationId"])
