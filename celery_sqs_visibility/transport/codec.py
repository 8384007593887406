"""kombu's wire format on SQS, of received messages and of copies, so that a fleet can migrate step by step.

A body is kombu's message as JSON, base64-encoded or not (kombu/transport/SQS/__init__.py:
`_message_to_python`, `_envelope_payload`). `encoding` writes the bodies of published messages.
"""

from __future__ import annotations

import binascii
import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any, Final

from kombu.utils.json import dumps, loads

from celery_sqs_visibility.aws.port import ReceivedMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.contacts.python import decodes_to_text
from celery_sqs_visibility.delivery.receive.content import DecodedMessage, loggable
from celery_sqs_visibility.errors import TooLargeError, UnreadableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import NEVER, is_never
from celery_sqs_visibility.policy.message_limits import (
    FEW_BRACKETS,
    check_json,
    is_selected,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES
from celery_sqs_visibility.transport.aws_events import describe_aws_event
from celery_sqs_visibility.transport.content_bounds import NOT_DECODED
from celery_sqs_visibility.transport.encoding import eta_of, fields_of_body, in_base64

#: Keys of `delivery_info` that are added on receipt, as in kombu's SQS transport, and not sent again.
RECEIVED_KEYS: Final = ("sqs_message", "sqs_queue", "redelivered")

#: Marks a typed value in kombu's JSON. Without one, `json.loads` can be used, which is three times as fast.
TYPED: Final = "__type__"

#: The parts of a task as Celery sends it, and their types. `binary` is pickle's and MessagePack's.
_PARTS: Final = itemgetter("content-type", "body")
_PROPERTIES: Final = itemgetter("delivery_info", "body_encoding")
_HEADERS: Final = itemgetter("task", "id", "retries", "eta")
_USUAL_TYPES: Final = [str, str, dict, str, str, str, int, type(None)]
USUAL_ENCODINGS: Final = ("utf-8", "binary")

#: Decodes base64, and refuses any other text.
_decode_base64: Final[Callable[[str], bytes]] = partial(binascii.a2b_base64, strict_mode=True)

#: Levels of lists and objects in a payload: kombu's has four; a few hundred can't be copied.
MAX_DEPTH: Final = FEW_BRACKETS

#: Text encodings that take extremely long to decode a malicious body.
SLOW_ENCODINGS: Final = ("idna", "punycode")

#: Characters that SQS refuses in any text (API_SendMessage: those outside XML 1.0), and control characters.
ILLEGIBLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

#: Bytes left to a dead letter's attributes.
ATTRIBUTE_BYTES: Final = 4096

#: Reads JSON that has nothing around the value, in a fifth of the steps of `json.loads`.
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # typeshed leaves it out

#: The key of the original body, in a payload made from a message that was not a task.
OWN_BODY: Final = "sqs-body"


class NoTaskError(UnreadableError):
    """The body is not in kombu's format: another program sent it."""


def decode_message(
    queue: Queue,
    message: ReceivedMessage,
    attribute_names: Sequence[str] = ("All",),
) -> DecodedMessage:
    """Read a received message. The task sees the message attributes of the given names.

    Raises:
        NoTaskError: it is not in kombu's format.
        UnreadableError: it is in kombu's format, but has a fault.
    """
    return _received(_open(_text(message["Body"])), queue, message, attribute_names)


def decode_any_message(
    queue: Queue,
    message: ReceivedMessage,
    attribute_names: Sequence[str] = ("All",),
) -> DecodedMessage:
    """Read a received message for a consumer that is not Celery's. Never raises.

    A body in another format than kombu's is returned as text, decoded from base64 if it is that, like in
    kombu (kombu/transport/SQS/__init__.py: `_envelope_payload`).
    """
    body = message["Body"]
    try:
        return _received(_open(_text(body)), queue, message, attribute_names)
    except UnreadableError:
        text = _base64_text(body.strip())
        payload = {"body": body if text is None else text, "properties": {"delivery_info": {}}}
        return _received(DecodedMessage(payload), queue, message, attribute_names)


def open_payload(
    payload: dict[str, Any], queue: Queue, message: ReceivedMessage, attribute_names: Sequence[str]
) -> DecodedMessage:
    """The content of a message with this payload.

    Raises:
        UnreadableError: a part has the wrong type.
    """
    return _received(_usual_task(payload) or _any_task(payload), queue, message, attribute_names)


def _received(
    opened: DecodedMessage, queue: Queue, message: ReceivedMessage, attribute_names: Sequence[str]
) -> DecodedMessage:
    """Add the facts of the receive to the content."""
    properties = opened.payload["properties"]
    properties["delivery_tag"] = message["ReceiptHandle"]
    info = properties["delivery_info"]
    info["sqs_message"] = _metadata(message, attribute_names)
    info["sqs_queue"] = queue.url
    return opened


def _usual_task(payload: Any) -> DecodedMessage | None:
    """The content of a task without an ETA, as Celery sends it; `None` for any other message."""
    try:
        headers = payload["headers"]
        parts = *_PARTS(payload), *_PROPERTIES(payload["properties"]), *_HEADERS(headers)
        if [*map(type, parts)] != _USUAL_TYPES or payload["content-encoding"] not in USUAL_ENCODINGS:
            return None
    except (KeyError, TypeError):
        return None
    return DecodedMessage(payload, headers["task"], headers["id"], None, headers["retries"])


def _any_task(payload: dict[str, Any]) -> DecodedMessage:
    """The content of any message of kombu's. For protocol 1 the ETA is left to Celery."""
    headers = _checked_headers(payload)
    named = headers if "task" in headers else fields_of_body(payload, '"task"')
    if (eta := eta_of(named) or eta_of(headers)) is not None and is_never(eta - SYSTEM_CLOCK.wall()):
        raise UnreadableError(f"its ETA, {loggable(str(named.get('eta') or headers['eta']))}, is {NEVER}")
    retries = headers.get("retries")
    return DecodedMessage(
        payload,
        task=_text_or_none(named.get("task")),
        task_id=_text_or_none(named.get("id")),
        eta=eta_of(headers) if eta else None,
        retries=retries if isinstance(retries, int) else 0,
    )


def encode_payload(payload: Mapping[str, Any]) -> str:
    """The body of a copy of the message or of a dead letter, made of the payload from `decode_message`.

    In base64, which preserves any character, if that fits into a message; otherwise as compact as possible. A
    message that was not a task keeps its original body.
    """
    if (own := payload.get(OWN_BODY)) is not None:
        return str(own)
    info = payload["properties"].get("delivery_info", {})
    info = {key: value for key, value in info.items() if key not in RECEIVED_KEYS}
    message = {**payload, "properties": {**payload["properties"], "delivery_info": info}}
    text = dumps(message)
    most = MESSAGE_BYTES - ATTRIBUTE_BYTES
    if 4 * len(text) // 3 + 4 <= most:
        return in_base64(text)
    text = dumps(message, separators=(",", ":"))
    if len(text) <= most:
        return text
    plain = dumps(message, separators=(",", ":"), ensure_ascii=False)
    return text if ILLEGIBLE.search(plain) else plain


def with_eta(headers: Mapping[str, Any], eta: float, retries: int) -> dict[str, Any]:
    """The headers of a task with another ETA, in seconds since the epoch."""
    instant = datetime.fromtimestamp(eta, UTC).isoformat()
    return {**headers, "eta": instant, "retries": retries}


def _metadata(message: ReceivedMessage, attribute_names: Sequence[str]) -> dict[str, Any]:
    """The message as users see it, without its body, which prefork would pickle a second time."""
    metadata: dict[str, Any] = {**message}
    del metadata["Body"]
    if "MessageAttributes" not in metadata:  # the usual case
        return metadata
    attributes = metadata.pop("MessageAttributes")
    if attributes and "All" not in attribute_names:
        metadata.pop("MD5OfMessageAttributes", None)  # of all attributes
        attributes = {k: v for k, v in attributes.items() if is_selected(k, attribute_names)}
    return {**metadata, "MessageAttributes": attributes} if attributes else metadata


def _text(body: str) -> str:
    body = body.strip()
    if body.startswith("{"):
        return body
    if (text := _base64_text(body)) is None:
        raise NoTaskError("its body is neither a JSON object nor base64 of one")
    return text


def _base64_text(body: str) -> str | None:
    try:
        return _decode_base64(body).decode()
    except ValueError:
        return None


def read_json(text: str) -> Any:
    """Parse JSON as `json.loads` does.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        value, end = _SCAN(text, 0)
    except (ValueError, StopIteration):  # leading white space, for example
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def _open(text: str) -> DecodedMessage:
    many = text.count("{") + text.count("[") > FEW_BRACKETS
    if many:
        try:
            check_json(text)
        except TooLargeError as error:
            raise UnreadableError(str(error)) from None
    try:
        payload = read_json(text) if TYPED not in text else loads(text)
    except Exception as error:  # noqa: BLE001 - kombu's decoders of typed values may raise anything
        raise NoTaskError(f"its body is not JSON: {error!r}") from None
    task = _usual_task(payload)
    if task is None:
        _check_is_kombus(payload)
    if many and _deeper_than(MAX_DEPTH, payload):
        raise UnreadableError(f"its body is nested more than {MAX_DEPTH} levels deep")
    return task or _any_task(payload)


def _check_is_kombus(payload: Any) -> None:
    if (event := describe_aws_event(payload)) is not None:
        raise NoTaskError(f"its body is {event}, not a Celery message")
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise NoTaskError("its body is JSON, but not kombu's: it has no 'properties'")


def _checked_headers(payload: dict[str, Any]) -> dict[str, Any]:
    """Check the types of all parts that kombu reads. Returns the headers.

    Raises:
        UnreadableError: a part has the wrong type, or the encoding is not a text encoding.
    """
    properties = payload["properties"]
    properties.setdefault("delivery_info", {})
    if not isinstance(properties["delivery_info"], dict):
        raise UnreadableError("its properties.delivery_info should be a JSON object")
    encoding = payload.get("content-encoding")
    for name, value, kind in (
        ("headers", payload.get("headers"), dict),
        ("properties.body_encoding", properties.get("body_encoding"), str),
        ("content-type", payload.get("content-type"), str),
        ("content-encoding", encoding, str),
        ("body", payload.get("body"), str),
    ):
        if value is not None and not isinstance(value, kind):
            wanted = "a JSON object" if kind is dict else "text"
            raise UnreadableError(f"its {name} should be {wanted}, and is of type {type(value).__name__}")
    if encoding and not _is_of_text(encoding):
        raise UnreadableError(f"its content-encoding {encoding[:50]!r} is not a text encoding")
    return payload.get("headers") or {}


def _is_of_text(encoding: str) -> bool:
    """Returns whether decoding gives text: Python's "zlib" and "bz2" would inflate a bomb."""
    if encoding in USUAL_ENCODINGS or encoding.lower() in NOT_DECODED:
        return True
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):  # ValueError: the name holds a NUL
        return False
    return decodes_to_text(codec) and codec.name not in SLOW_ENCODINGS


def _deeper_than(levels: int, payload: Any) -> bool:
    """Returns whether lists and objects are nested deeper. Not recursive, because they may be deep."""
    level = [payload]
    for _ in range(levels):
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [inner for each in values for inner in each if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
