"""kombu's wire format on SQS, in both directions: a fleet migrates one process at a time.

A body is kombu's message as JSON, base64-encoded or not (kombu/transport/SQS/__init__.py: `_put`,
`_message_to_python`, `_envelope_payload`).
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import dumps, loads

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.decoder import ILLEGIBLE, Opened, UnreadableError, legible
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS, MESSAGE_BYTES
from celery_sqs_visibility.transport.aws_events import describe_aws_event

#: What we, as kombu, put into `delivery_info` of what was received, and take out of what is sent again.
OURS = ("sqs_message", "sqs_queue", "redelivered")

#: Where kombu's JSON has typed values; without, the plain way to read it is three times as quick.
TYPED = "__type__"

#: The group of a FIFO queue's messages that name none, as in kombu.
DEFAULT_GROUP = "default"

#: Levels of lists and objects in an envelope: kombu's has four, and some hundreds cannot be copied.
DEEPEST = 100

#: Encodings of bodies that are no text, or that take forever to decode what somebody meant to.
NO_ENCODINGS = ("idna", "punycode")
#: What kombu does not decode (kombu/serialization.py: `SKIP_DECODE`).
NOT_DECODED = ("binary", "ascii-8bit")

#: Bytes left to a dead letter's attributes.
ATTRIBUTE_BYTES = 4096


def encode_message(message: Mapping[str, Any], queue: Queue, *, base64_encoded: bool) -> OutgoingMessage:
    """Make kombu's message ready to be sent.

    The properties `message_attributes`, `MessageGroupId`, `MessageDeduplicationId` and `delay_seconds` (or
    `DelaySeconds`) become those of SQS. The id that a message to a FIFO queue is given, if it has none, stays
    among them: where sending fails, kombu has this very message sealed again, and SQS may have it already.
    """
    properties = dict(message.get("properties", {}))
    attributes = properties.pop("message_attributes", None) or {}
    group = properties.get("MessageGroupId")
    deduplication = None
    delay = None
    if queue.fifo:
        group = group or DEFAULT_GROUP
        deduplication = properties.get("MessageDeduplicationId")
        if not deduplication:
            deduplication = message["properties"]["MessageDeduplicationId"] = str(uuid.uuid4())
    else:
        delay = _delay_seconds(properties)
    text = dumps({**message, "properties": properties})
    return OutgoingMessage(
        body=base64.b64encode(text.encode()).decode() if base64_encoded else text,
        attributes=attributes,
        delay=delay,
        # A number or a UUID would be refused, and all that shares its request with it.
        group_id=None if group is None else str(group),
        deduplication_id=None if deduplication is None else str(deduplication),
    )


def decode_message(queue: Queue, message: ReceivedMessage) -> Opened:
    """Read a received message.

    Raises:
        UnreadableError: it is not kombu's.
    """
    payload = _parse(_text(message["Body"]))
    headers = _checked(payload)
    properties = payload["properties"]
    properties["delivery_tag"] = message["ReceiptHandle"]
    info = properties["delivery_info"]
    # Users read these; the body is left out, since prefork pickles all of it once more for the child.
    info["sqs_message"] = {key: value for key, value in message.items() if key != "Body"}
    info["sqs_queue"] = queue.url
    return Opened(
        payload,
        task=_name_or_none(headers.get("task")),
        task_id=_name_or_none(headers.get("id")),
        eta=eta_of(headers),
    )


def encode_payload(payload: Mapping[str, Any]) -> str:
    """The body of a message as it was before `decode_message`, but for details that nobody reads.

    In base64, which any character survives, if that fits into a message; else as compact as it may be.
    """
    properties = dict(payload["properties"])
    info = properties.get("delivery_info", {})
    properties["delivery_info"] = {key: value for key, value in info.items() if key not in OURS}
    message = {**payload, "properties": properties}
    text = dumps(message)
    capacity = MESSAGE_BYTES - ATTRIBUTE_BYTES
    if 4 * len(text) // 3 + 4 <= capacity:
        return base64.b64encode(text.encode()).decode()
    text = dumps(message, separators=(",", ":"))
    if len(text) <= capacity:
        return text
    plain = dumps(message, separators=(",", ":"), ensure_ascii=False)
    return text if ILLEGIBLE.search(plain) else plain


def eta_of(headers: Mapping[str, Any]) -> float | None:
    """The ETA in seconds since the epoch; `None` where there is none, or none that Celery understands.

    The only place that says which instant an ETA is, and it asks Celery's own functions: to them a naive ETA
    is UTC, whatever `timezone` and `enable_utc` say (celery/worker/request.py: `Request.__init__`).
    """
    eta = headers.get("eta")
    if not eta or not isinstance(eta, (str, datetime)):
        return None
    try:
        instant = maybe_iso8601(eta)
        return None if instant is None else maybe_make_aware(instant).timestamp()
    except Exception:  # noqa: BLE001 - whatever it is that the parser cannot bear; `vetting` refuses it
        return None


def with_eta(headers: Mapping[str, Any], eta: float, retries: int) -> dict[str, Any]:
    """The headers of a task that is to wait for another ETA, in seconds since the epoch."""
    instant = datetime.fromtimestamp(eta, timezone.utc).isoformat()
    return {**headers, "eta": instant, "retries": retries}


def _text(body: str) -> str:
    body = body.strip()
    if body[:1] == "{":
        return body
    try:
        return base64.b64decode(body, validate=True).decode()
    except (binascii.Error, ValueError):
        raise UnreadableError("its body is neither a JSON object nor base64 of one") from None


def _parse(text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text) if TYPED not in text else loads(text)
    except Exception as error:  # noqa: BLE001 - kombu's decoders of typed values may raise anything
        raise UnreadableError(f"its body is not JSON: {error!r}") from None
    if (foreign := describe_aws_event(payload)) is not None:
        raise UnreadableError(f"its body is {foreign}, not a Celery message")
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise UnreadableError("its body is JSON, but not kombu's: it has no 'properties'")
    if text.count("{") + text.count("[") > DEEPEST and _deeper_than(DEEPEST, payload):
        raise UnreadableError(f"its body is nested more than {DEEPEST} levels deep")
    return payload


def _checked(payload: dict[str, Any]) -> dict[str, Any]:
    """The headers, if what kombu takes for text and objects is."""
    for name, value, kind in (
        ("headers", payload.get("headers"), dict),
        ("properties.body_encoding", payload["properties"].get("body_encoding"), str),
        ("content-type", payload.get("content-type"), str),
        ("content-encoding", payload.get("content-encoding"), str),
        ("body", payload.get("body"), str),
    ):
        if value is not None and not isinstance(value, kind):
            what = "a JSON object" if kind is dict else "text"
            raise UnreadableError(f"its {name} should be {what}, and is of type {type(value).__name__}")
    if not isinstance(payload["properties"].setdefault("delivery_info", {}), dict):
        raise UnreadableError("its properties.delivery_info should be a JSON object")
    encoding = payload.get("content-encoding")
    if encoding and not _is_of_text(encoding):
        raise UnreadableError(f"its content-encoding {encoding[:50]!r} is not one of text")
    return payload.get("headers") or {}


def _is_of_text(encoding: str) -> bool:
    """Whether decoding makes text of bytes: Python's "zlib" and "bz2" would inflate a bomb."""
    encoding = encoding.lower()
    if encoding in NOT_DECODED:
        return True
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):  # ValueError: it holds a NUL
        return False
    return codec._is_text_encoding and codec.name not in NO_ENCODINGS  # noqa: SLF001 - as bytes.decode() does


def _deeper_than(levels: int, value: Any) -> bool:
    """Whether lists and objects are nested that deep."""
    level = [value]
    for _ in range(levels):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return False
    return True


def _inner(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in values if isinstance(inner, (dict, list))]


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


def _name_or_none(value: Any) -> str | None:
    """A name as it may be logged, and sent along with a dead letter."""
    return legible(value) if isinstance(value, str) else None
