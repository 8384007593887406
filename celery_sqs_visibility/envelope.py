"""kombu's wire format on SQS, in both directions: a fleet migrates one process at a time.

A body is kombu's message as JSON, base64-encoded or not (kombu/transport/SQS/__init__.py: `_put`,
`_message_to_python`, `_envelope_payload`).
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.utils.json import dumps, loads

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.intake import Opened, UnreadableError
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS, MESSAGE_BYTES

#: What we, as kombu, put into `delivery_info` of what was received, and take out of what is sent again.
OURS = ("sqs_message", "sqs_queue", "redelivered")

#: The group of a FIFO queue's messages that name none, as in kombu.
DEFAULT_GROUP = "default"


def seal(message: Mapping[str, Any], queue: Queue, *, base64_encoded: bool) -> OutgoingMessage:
    """Make kombu's message ready to be sent.

    The properties `message_attributes`, `MessageGroupId`, `MessageDeduplicationId` and `delay_seconds` (or
    `DelaySeconds`) become those of SQS.
    """
    properties = dict(message.get("properties", {}))
    attributes = properties.pop("message_attributes", None) or {}
    group = properties.get("MessageGroupId")
    deduplication = None
    delay = None
    if queue.fifo:
        group = group or DEFAULT_GROUP
        deduplication = properties.get("MessageDeduplicationId") or str(uuid.uuid4())
    else:
        delay = _delay_seconds(properties)
    text = dumps({**message, "properties": properties})
    return OutgoingMessage(
        body=base64.b64encode(text.encode()).decode() if base64_encoded else text,
        attributes=attributes,
        delay=delay,
        group_id=group,
        deduplication_id=deduplication,
    )


def open_message(queue: Queue, message: ReceivedMessage) -> Opened:
    """Read a received message.

    Raises:
        UnreadableError: it is not kombu's.
    """
    payload = _parse(_text(message["Body"]))
    properties = payload["properties"]
    properties["delivery_tag"] = message["ReceiptHandle"]
    info = properties.setdefault("delivery_info", {})
    if not isinstance(info, dict):
        raise UnreadableError("its properties.delivery_info is not a JSON object")
    # Users read these; the body is left out, since prefork pickles all of it once more for the child.
    info["sqs_message"] = {key: value for key, value in message.items() if key != "Body"}
    info["sqs_queue"] = queue.url
    headers = payload.get("headers")
    if headers is not None and not isinstance(headers, dict):
        raise UnreadableError("its headers are not a JSON object")
    headers = headers or {}
    return Opened(
        payload,
        task=_text_or_none(headers.get("task")),
        task_id=_text_or_none(headers.get("id")),
        eta=eta_of(headers),
    )


def seal_again(payload: Mapping[str, Any]) -> str:
    """The body of a message as it was before `open_message`, but for details that nobody reads.

    What base64 would make too large, since those details grew, is left as JSON: all understand both.
    """
    properties = dict(payload["properties"])
    info = properties.get("delivery_info", {})
    properties["delivery_info"] = {key: value for key, value in info.items() if key not in OURS}
    text = dumps({**payload, "properties": properties})
    body = base64.b64encode(text.encode()).decode()
    return body if len(body) <= MESSAGE_BYTES else text


def eta_of(headers: Mapping[str, Any]) -> float | None:
    """The ETA in seconds since the epoch; `None` where there is none, or none that we understand."""
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return None
    try:
        instant = datetime.fromisoformat(eta.replace("Z", "+00:00"))
    except ValueError:
        return None
    # A naive ETA is in the app's time zone, which Celery knows and we do not.
    return None if instant.tzinfo is None else instant.timestamp()


def _text(body: str) -> str:
    body = body.strip()
    if body[:1] == "{":
        return body
    try:
        return base64.b64decode(body, validate=True).decode()
    except (binascii.Error, ValueError):
        raise UnreadableError("its body is neither JSON nor base64 of it") from None


def _parse(text: str) -> dict[str, Any]:
    try:
        payload = loads(text)
    except Exception as error:  # noqa: BLE001 - kombu's decoders of typed values may raise anything
        raise UnreadableError(f"its body is not JSON: {error!r}") from None
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise UnreadableError("its body is JSON, but not kombu's: it has no 'properties'")
    return payload


def _delay_seconds(properties: Mapping[str, Any]) -> int | None:
    for name in ("delay_seconds", "DelaySeconds"):
        value = properties.get(name)
        if value is None:
            continue
        try:
            delay = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return min(delay, DELAY_SECONDS) if delay >= 0 else None
    return None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
