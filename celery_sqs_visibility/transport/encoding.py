"""kombu's wire format on SQS for published messages, with their delays. `codec` reads them.

A body is kombu's message as JSON, base64-encoded or not (kombu/transport/SQS/__init__.py: `_put`).
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import JSONEncoder

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import ETATooFarError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import NEVER, DelayLimits, is_never, kept_delay
from celery_sqs_visibility.policy.message_limits import check_names, checked_id
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.topics import Topic  # for fanout only

logger = logging.getLogger(__name__)

#: Like kombu's `dumps`, but without a new encoder for each message.
_encode: Final = JSONEncoder().encode

#: The group of messages to a FIFO queue that name none, as in kombu.
DEFAULT_GROUP: Final = "default"

#: The limits of an unknown queue.
NO_LIMITS: Final = DelayLimits()

#: The properties that give a delay, as in kombu.
DELAY_PROPERTIES: Final = ("delay_seconds", "DelaySeconds")

NOT_KEPT: Final = "delay_seconds=%r of a message to %r is not kept: %s; a countdown waits in SQS, too"


def encode_message(
    message: Mapping[str, Any],
    queue: Queue | Topic,
    *,
    base64_encoded: bool,
    limits: DelayLimits = NO_LIMITS,
) -> OutgoingMessage:
    """Convert kombu's message to the message to send.

    The properties `message_attributes`, `MessageGroupId`, `MessageDeduplicationId` and `delay_seconds` (or
    `DelaySeconds`) become SQS's, and an ETA becomes a delay within `limits`. A message to a FIFO queue
    without a deduplication id gets one, which is stored in `message`: after an error kombu publishes the same
    message again, although SQS may have it already.

    Raises:
        ETATooFarError: SQS would delete the message before its ETA.
        InvalidIdError: SQS rejects its group, or workers reject the task's id.
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
        name = queue.name
        delay, visible_at = delay_of(properties, eta, queue, limits)
    else:  # workers hide a message from a topic until its ETA
        name = queue.exchange
        delay, visible_at = without_delay(properties, name, "SNS has no delays")
    text = _encode({**message, "properties": properties})
    return OutgoingMessage(
        body=in_base64(text) if base64_encoded else text,
        attributes=attributes,
        delay=delay,
        group_id=None if group is None else checked_id("MessageGroupId", group, name),
        deduplication_id=_deduplication_id(message) if queue.fifo else None,
        visible_at=visible_at,
    )


def in_base64(text: str) -> str:
    """Text in base64, which preserves any character."""
    return binascii.b2a_base64(text.encode(), newline=False).decode()


def _deduplication_id(message: Mapping[str, Any]) -> str:
    """The message's own id, or a new one that is stored in the message."""
    properties = message["properties"]
    if not properties.get("MessageDeduplicationId"):
        properties["MessageDeduplicationId"] = str(uuid.uuid4())
    return str(properties["MessageDeduplicationId"])


class Delay(NamedTuple):
    """`delay` and `visible_at` of an `OutgoingMessage`."""

    seconds: int | None = None
    visible_at: float | None = None


def delay_of(properties: Mapping[str, Any], eta: float | None, queue: Queue, limits: DelayLimits) -> Delay:
    """The delay of a message that is published now. An explicit delay overrides that of the ETA.

    Raises:
        ETATooFarError: SQS would delete the message before its ETA.
    """
    wait = None if eta is None else eta - SYSTEM_CLOCK.wall()
    if wait is not None and is_never(wait):
        raise ETATooFarError(f"an ETA in {wait:,.0f} s, for queue {queue.name!r}, is {NEVER}")
    if wait is not None and (reason := limits.why_not(wait, fifo=queue.fifo)) is not None:
        raise ETATooFarError(f"an ETA in {wait:,.0f} s is too far for queue {queue.name!r}: {reason}")
    if queue.fifo:
        return without_delay(properties, queue.name, "SQS delays no single message of a FIFO queue")
    given = _given_delay(properties, queue.name)
    if (reason := limits.why_not_delayed(given)) is not None:
        raise ETATooFarError(f"delay_seconds={given} is too long for queue {queue.name!r}: {reason}")
    if given is not None or eta is None or wait is None:
        return Delay(given)
    return Delay(limits.delay_for(wait), eta - limits.sleep)


def headers_with_eta(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a published message that has its ETA: the headers, or a JSON body in Celery's protocol 1.

    An ETA in a body only sets the delay: workers leave the body to Celery.
    """
    headers: Mapping[str, Any] = message.get("headers") or {}
    return headers if "task" in headers else fields_of_body(message, '"eta"') or headers


def fields_of_body(message: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """The fields in the JSON body of a message of protocol 1; empty if `wanted` is not in its text."""
    if message.get("content-type") != "application/json":
        return {}
    try:
        body = message["body"]
        if message.get("properties", {}).get("body_encoding") == "base64":
            body = base64.b64decode(body).decode()
        fields = json.loads(body) if wanted in body and len(body) <= MESSAGE_BYTES else None
    except (KeyError, TypeError, ValueError, RecursionError):  # not a task of Celery's, or a compressed one
        return {}
    return fields if isinstance(fields, dict) else {}


def eta_of(headers: Mapping[str, Any]) -> float | None:
    """The ETA in seconds since the epoch; `None` if there is none that Celery understands.

    Celery's own functions, which are used here, treat a naive ETA as UTC, despite `timezone` and `enable_utc`
    (celery/worker/request.py: `Request.__init__`).
    """
    eta = headers.get("eta")
    if not eta or not isinstance(eta, (str, datetime)):
        return None
    try:
        instant = maybe_iso8601(eta)
        return None if instant is None else maybe_make_aware(instant).timestamp()
    except Exception as error:
        if passes(error):
            raise
        return None  # the parser may raise anything; `worker.validation` refuses the message


def without_delay(properties: Mapping[str, Any], name: str, reason: str) -> Delay:
    """No delay; logs a warning if the message asks for one, which that queue or topic can't keep."""
    if given := _written_delay(properties):
        logger.warning(NOT_KEPT, given, name, reason)
    return Delay()


def _given_delay(properties: Mapping[str, Any], queue: str) -> int | None:
    if (given := _written_delay(properties)) is None:
        return None
    delay, reason = kept_delay(given)
    if reason:
        logger.warning(NOT_KEPT, given, queue, reason)
    return delay


def _written_delay(properties: Mapping[str, Any]) -> Any:
    for name in DELAY_PROPERTIES:
        if (delay := properties.get(name)) is not None:
            return delay
    return None
