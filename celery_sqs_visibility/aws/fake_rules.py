"""Validation by the fake SQS of names, queue attributes and messages, with SQS's own codes and sentences.

Each rule has a row in tests/conformance/behaviours.jsonl with its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, RequestRefusedError
from celery_sqs_visibility.policy.message_limits import escape_illegal, message_bytes
from celery_sqs_visibility.policy.queue_names import (
    ATTRIBUTES,
    FIFO,
    FIFO_ATTRIBUTES,
    FIFO_SUFFIX,
    REDRIVE_POLICY,
    why_illegal,
)
from celery_sqs_visibility.policy.quotas import (
    BATCH_ENTRIES,
    DEFAULT_RETENTION_SECONDS,
    DELAY_SECONDS,
    MESSAGE_ATTRIBUTES,
    MESSAGE_BYTES,
    MIN_RETENTION_SECONDS,
    RETENTION_SECONDS,
    VISIBILITY_HORIZON_SECONDS,
    WAIT_TIME_SECONDS,
)

#: Lowest and highest values of queue attributes.
_RANGES: Final = {
    "DelaySeconds": (0, DELAY_SECONDS),
    "MaximumMessageSize": (1024, MESSAGE_BYTES),
    "MessageRetentionPeriod": (MIN_RETENTION_SECONDS, RETENTION_SECONDS),
    "ReceiveMessageWaitTimeSeconds": (0, WAIT_TIME_SECONDS),
    "VisibilityTimeout": (0, VISIBILITY_HORIZON_SECONDS),
}

#: Attributes of a queue that was created without any.
DEFAULTS: Final = {
    "DelaySeconds": "0",
    "MaximumMessageSize": str(MESSAGE_BYTES),
    "MessageRetentionPeriod": str(DEFAULT_RETENTION_SECONDS),
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}

#: Read-only attributes.
_READ_ONLY: Final = frozenset(
    {
        "All",
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    }
)

_NO_GROUP: Final = "The request must contain the parameter MessageGroupId."


def refused(action: str, sentence: str, code: str = "InvalidParameterValue") -> RequestRefusedError:
    """Return the error for an invalid request."""
    return RequestRefusedError(sentence, code=code, action=action)


def invalid_handle(
    action: str, sentence: str, code: str = "InvalidParameterValue"
) -> ReceiptHandleInvalidError:
    """Return the error for an invalid receipt handle."""
    return ReceiptHandleInvalidError(sentence, code=code, action=action)


def require_range(action: str, name: str, value: int, low: int, high: int) -> None:
    """Refuse a parameter out of range."""
    if not low <= value <= high:
        reason = f"Must be between {low} and {high}, if provided."
        raise refused(action, f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def require_batch_size(action: str, entries: int) -> None:
    """Refuse a batch without entries or with too many."""
    if not entries:
        raise refused(action, "The batch has no entries.", "EmptyBatchRequest")
    if entries > BATCH_ENTRIES:
        sentence = f"Maximum number of entries per request are {BATCH_ENTRIES}. You have sent {entries}."
        raise refused(action, sentence, "TooManyEntriesInBatchRequest")


def require_creation(action: str, name: str, attributes: Mapping[str, str]) -> None:
    """Refuse an invalid queue name, or attributes that don't go with it."""
    if why_illegal(name) or name.endswith(FIFO_SUFFIX) != (attributes.get(FIFO) == "true"):
        raise refused(action, f"{name!r} with {dict(attributes)} cannot be a queue's name.")
    require_settings(action, attributes, fifo=name.endswith(FIFO_SUFFIX))


def require_settings(action: str, attributes: Mapping[str, str], *, fifo: bool) -> None:
    """Refuse invalid attributes, and those of FIFO queues for a standard queue."""
    for name, value in attributes.items():
        if name not in ATTRIBUTES or (name in FIFO_ATTRIBUTES and not fifo):
            raise refused(action, f"Unknown Attribute {name}.", "InvalidAttributeName")
        low, high = _RANGES.get(name, (0, 0))
        if name in _RANGES and not (value.isdigit() and low <= int(value) <= high):
            sentence = f"Invalid value for the parameter {name}."
            raise refused(action, sentence, "InvalidAttributeValue")
    if policy := attributes.get(REDRIVE_POLICY):
        _require_redrive_policy(action, policy)


def _require_redrive_policy(action: str, text: str) -> None:
    try:
        policy = json.loads(text)
        receives = int(policy["maxReceiveCount"])
        is_valid = "deadLetterTargetArn" in policy and receives > 0
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise refused(action, f"Value {text} for parameter {REDRIVE_POLICY} is invalid.")


def require_attribute_names(action: str, names: Iterable[str]) -> None:
    """Refuse unknown attribute names."""
    for name in names:
        if name not in ATTRIBUTES and name not in _READ_ONLY:
            raise refused(action, f"Unknown Attribute {name}.", "InvalidAttributeName")


def require_batch(action: str, queue: Mapping[str, str], messages: Sequence[OutgoingMessage]) -> None:
    """Refuse a whole batch for its size, or for a message without its group or deduplication id.

    `queue` has the attributes of the queue.
    """
    require_batch_size(action, len(messages))
    total = sum(message_bytes(message.body, message.attributes) for message in messages)
    if total > MESSAGE_BYTES:
        sentence = f"Batch requests cannot be longer than {MESSAGE_BYTES} bytes. You have sent {total} bytes."
        raise refused(action, sentence, "BatchRequestTooLong")
    if queue.get(FIFO) == "true":
        if any(message.group_id is None for message in messages):
            raise refused(action, _NO_GROUP)
        for message in messages:
            _require_deduplication_id(action, queue, message)


def require_message(action: str, queue: Mapping[str, str], message: OutgoingMessage) -> None:
    """Refuse a message that a queue with these attributes does not accept."""
    fifo = queue.get(FIFO) == "true"
    if not message.body:
        raise refused(action, "The request must contain the parameter MessageBody.", "MissingParameter")
    if len(message.attributes) > MESSAGE_ATTRIBUTES:
        raise refused(action, f"A message has {MESSAGE_ATTRIBUTES} attributes at most.")
    for name, attribute in message.attributes.items():
        _require_attribute(action, name, attribute)
    max_bytes = int(queue.get("MaximumMessageSize", MESSAGE_BYTES))
    if message_bytes(message.body, message.attributes) > max_bytes:
        reason = f"Message must be shorter than {max_bytes} bytes."
        raise refused(action, f"One or more parameters are invalid. Reason: {reason}")
    if escape_illegal(message.body) != message.body:
        raise refused(action, "Invalid characters found in the message.", "InvalidMessageContents")
    _require_delay(action, message.delay, fifo=fifo)
    if fifo:
        _require_deduplication_id(action, queue, message)
        if message.group_id is None:
            raise refused(action, _NO_GROUP, "MissingParameter")
    _require_id(action, "MessageGroupId", message.group_id)
    _require_id(action, "MessageDeduplicationId", message.deduplication_id)


def _require_delay(action: str, delay: int | None, *, fifo: bool) -> None:
    if delay and fifo:
        reason = "The request include parameter that is not valid for this queue type."
        raise refused(action, f"Value {delay} for parameter DelaySeconds is invalid. Reason: {reason}")
    require_range(action, "DelaySeconds", delay or 0, 0, DELAY_SECONDS)


def _require_deduplication_id(action: str, queue: Mapping[str, str], message: OutgoingMessage) -> None:
    if message.deduplication_id is None and queue.get("ContentBasedDeduplication") != "true":
        raise refused(
            action,
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
            "provided explicitly",
        )


def _require_id(action: str, name: str, value: str | None) -> None:
    if value is not None and not re.fullmatch(r"[!-~]{1,128}", value):
        reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise refused(action, f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def _require_attribute(action: str, name: str, attribute: Mapping[str, Any]) -> None:
    kind, text = attribute.get("DataType", "String"), attribute.get("StringValue")
    if text == "":
        sentence = f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."
        raise refused(action, sentence)
    if text is not None and escape_illegal(text) != text:
        raise refused(action, f"Message (user) attribute '{name}' has characters that XML does not allow.")
    if name.lower().startswith(("aws.", "amazon.")) or not re.fullmatch(
        r"(String|Number|Binary)(\..+)?", kind
    ):
        raise refused(action, f"The name of message (user) attribute '{name}', or its type, is invalid.")
