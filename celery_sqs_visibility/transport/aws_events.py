"""Messages that other AWS services put into a queue, by the shapes that Amazon documents."""

from __future__ import annotations

from typing import Any

#: The `Type` of an SNS message without raw delivery (Amazon SNS Developer Guide, "Message formats").
SNS_TYPES = ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation")


def describe_aws_event(body: Any) -> str | None:
    """Name the kind of AWS event that a parsed body is, for a log line; `None` if it is none."""
    if not isinstance(body, dict):
        return None
    if body.get("Type") in SNS_TYPES and "TopicArn" in body:
        return "an SNS message (raw message delivery is off)"
    if body.get("Service") == "Amazon S3" and body.get("Event") == "s3:TestEvent":
        return "an S3 test event"
    if "detail-type" in body and "source" in body and "detail" in body:
        return "an EventBridge event"
    records = body.get("Records")
    first = records[0] if isinstance(records, list) and records else None
    # S3 and what feeds Lambda name themselves: `aws:s3`, `aws:sqs`, ...
    source = (first.get("eventSource") or first.get("EventSource")) if isinstance(first, dict) else None
    if isinstance(source, str) and source.startswith("aws:"):
        return "an S3 event notification" if source == "aws:s3" else f"an event of {source}"
    return None
