"""Messages that other AWS services send to a queue, by the formats that Amazon documents. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: The `Type` of an SNS message without raw delivery (Amazon SNS Developer Guide, "Message formats").
SNS_NOTIFICATION: Final = "Notification"

#: What precedes a service's name in a record.
SERVICE_PREFIX: Final = "aws:"


class S3Object(NamedTuple):
    """The object that an S3 event is about; `version` is `None` in a bucket without versioning."""

    bucket: str
    key: str
    version: str | None


def s3_object(record: dict[str, Any]) -> S3Object:
    """The object of an S3 notification's record, or of an S3 event from EventBridge.

    The key is URL-encoded in a notification and plain in EventBridge; the result has it decoded.
    """
    if "detail" in record:
        detail = record["detail"]
        key, version = detail["object"]["key"], detail["object"].get("version-id")
        return S3Object(detail["bucket"]["name"], key, version)
    about = record["s3"]["object"]
    return S3Object(record["s3"]["bucket"]["name"], unquote_plus(about["key"]), about.get("versionId"))


def describe_aws_event(body: Any) -> str | None:
    """Name the kind of AWS event in a parsed body, for a log line; `None` for anything else."""
    if not isinstance(body, dict):
        return None
    if is_sns(body):
        is_notice = body["Type"] == SNS_NOTIFICATION
        return "an SNS message (raw message delivery is off)" if is_notice else f"an SNS {body['Type']}"
    if is_s3_test(body):
        return "an S3 test event"
    if _is_from_eventbridge(body):
        return "an EventBridge event"
    services = {name.partition(":")[0] for name, _ in _records(body)}
    if "s3" in services:
        return "an S3 event notification"
    return f"an event of {SERVICE_PREFIX}{min(services)}" if services else None


def is_sns(body: dict[str, Any]) -> bool:
    """Returns whether the body is an SNS message without raw delivery."""
    kinds = (SNS_NOTIFICATION, "SubscriptionConfirmation", "UnsubscribeConfirmation")
    return body.get("Type") in kinds and "TopicArn" in body


def is_s3_test(body: dict[str, Any]) -> bool:
    """Returns whether the body is S3's test message, sent when notifications are configured."""
    return body.get("Service") == "Amazon S3" and body.get("Event") == "s3:TestEvent"


def contents(body: Any) -> list[dict[str, Any]]:
    """The JSON object inside an SNS notification, if any, then the parsed body, if it is an object."""
    if not isinstance(body, dict):
        return []
    if not is_sns(body) or body["Type"] != SNS_NOTIFICATION:
        return [body]
    try:
        # SNS accepts no larger messages than SQS; a payload in S3 is parsed only up to that size.
        carried = json.loads(body["Message"]) if len(body["Message"]) <= MESSAGE_BYTES else None
    except Exception:  # noqa: BLE001 - any text, and as deeply nested as anybody likes
        carried = None
    return [carried, body] if isinstance(carried, dict) else [body]


def events_of(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names, as in `sqs_event`, and records of the events in one of `contents()`; empty if none."""
    if is_sns(body):
        if body["Type"] != SNS_NOTIFICATION:
            return []
        return [(f"sns:{str(body['TopicArn']).rpartition(':')[2]}", body)]
    if _is_from_eventbridge(body):
        return [(f"{body['source']}/{body['detail-type']}", body)]
    return _records(body)


def _is_from_eventbridge(body: dict[str, Any]) -> bool:
    return "detail" in body and all(isinstance(body.get(name), str) for name in ("source", "detail-type"))


def _records(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Records in S3's format, which other services use, too; empty if any has another format."""
    records = body.get("Records")
    named = [(_name(record), record) for record in records] if isinstance(records, list) else []
    return [(name, record) for name, record in named if name] if all(name for name, _ in named) else []


def _name(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    source = record.get("eventSource") or record.get("EventSource")
    if not isinstance(source, str) or not source.startswith(SERVICE_PREFIX):
        return None
    event = record.get("eventName")
    return f"{source.removeprefix(SERVICE_PREFIX)}:{event if isinstance(event, str) else ''}"
