"""Event of an SQS event source mapping, which invokes a function (AWS Lambda Developer Guide)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage

SOURCE: Final = "aws:sqs"

#: A member of a record, and the parameter of ReceiveMessage's answer that it is.
MEMBERS: Final = {
    "messageId": "MessageId",
    "receiptHandle": "ReceiptHandle",
    "body": "Body",
    "md5OfBody": "MD5OfBody",
    "attributes": "Attributes",
}


def records_of(event: Any) -> list[dict[str, Any]]:
    """The records of an invocation.

    Raises:
                ValueError: the event is not of an SQS event source mapping.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list) or not all(_is_from_sqs(record) for record in records):
        got = (
            f"the keys {sorted(map(str, event))}" if isinstance(event, dict) else f"a {type(event).__name__}"
        )
        raise ValueError(
            f"expected the event of an SQS event source mapping, with 'Records' from {SOURCE!r}, got {got}"
        )
    return records


def message_of(record: Mapping[str, Any]) -> ReceivedMessage:
    """The record in the form of ReceiveMessage's answer."""
    message: dict[str, Any] = {theirs: record[name] for name, theirs in MEMBERS.items() if name in record}
    attributes = record.get("messageAttributes") or {}
    message["MessageAttributes"] = {name: _attribute(value) for name, value in attributes.items()}
    return message  # type: ignore[return-value] # its keys are those of `MEMBERS`


def _is_from_sqs(record: Any) -> bool:
    return isinstance(record, dict) and record.get("eventSource") == SOURCE


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    attribute = {"DataType": value.get("dataType", "String")}
    if value.get("stringValue") is not None:
        attribute["StringValue"] = value["stringValue"]
    if value.get("binaryValue") is not None:
        attribute["BinaryValue"] = base64.b64decode(value["binaryValue"])
    return attribute
