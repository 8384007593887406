"""What else ends up in a queue: notifications of other AWS services, by the shapes that Amazon documents."""

from __future__ import annotations

from typing import Any

#: The `Type` of an SNS message without raw delivery (Amazon SNS Developer Guide, "Message formats").
SNS_TYPES = ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation")


def describe_aws_event(body: Any) -> str | None:
    """The kind of message of another system that a parsed body is, for whoever reads the log, or `None`."""
    if not isinstance(body, dict):
        return None
    if body.get("Type") in SNS_TYPES and "TopicArn" in body:
        return "an SNS message (raw message delivery is off)"
    if body.get("Service") == "Amazon S3" and body.get("Event") == "s3:TestEvent":
        return "an S3 test event"
    if "detail-type" in body and "source" in body and "detail" in body:
        return "an EventBridge event"
    source = _source_of_records(body.get("Records"))
    if source == "aws:s3":
        return "an S3 event notification"
    return f"an event of {source}" if source else None


def _source_of_records(records: Any) -> str | None:
    """Whose records they are, as S3 and what Lambda is fed by name themselves: `aws:s3`, `aws:sqs`, ..."""
    first = records[0] if isinstance(records, list) and records else None
    if not isinstance(first, dict):
        return None
    source = first.get("eventSource") or first.get("EventSource")
    return source if isinstance(source, str) and source.startswith("aws:") else None
