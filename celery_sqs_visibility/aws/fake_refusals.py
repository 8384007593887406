"""What the fake of SQS refuses, as SQS does."""

from __future__ import annotations

from celery_sqs_visibility.aws.fake_queue import FakeQueue, refused
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.policy.message_attributes import legal, message_bytes
from celery_sqs_visibility.policy.quotas import (
    BATCH_ENTRIES,
    DELAY_SECONDS,
    MESSAGE_ATTRIBUTES,
    MESSAGE_BYTES,
)


def require_range(action: str, name: str, value: int, low: int, high: int) -> None:
    """Refuse a parameter that is out of range."""
    if not low <= value <= high:
        raise refused(action, f"Value {value} for parameter {name} is invalid. It must be {low} to {high}.")


def check_outgoing(queue: FakeQueue, message: OutgoingMessage) -> None:
    """Refuse a message that SQS does not take for the queue."""
    action = "SendMessage"
    if not message.body:
        raise refused(action, "The request must contain the parameter MessageBody.", "MissingParameter")
    texts = {n: value["StringValue"] for n, value in message.attributes.items() if "StringValue" in value}
    for name, text in texts.items():
        if not text or legal(text) != text:
            raise refused(action, f"The message attribute {name!r} is empty, or not all of it is XML.")
    if message_bytes(message.body, message.attributes) > MESSAGE_BYTES:
        raise refused(
            action, f"One or more parameters are invalid. A message has {MESSAGE_BYTES} bytes at most."
        )
    if len(message.attributes) > MESSAGE_ATTRIBUTES:
        raise refused(action, f"A message has {MESSAGE_ATTRIBUTES} attributes at most.")
    if message.delay is not None:
        require_range(action, "DelaySeconds", message.delay, 0, 0 if queue.fifo else DELAY_SECONDS)
    if queue.fifo and message.group_id is None:
        raise refused(action, "The request must contain the parameter MessageGroupId.", "MissingParameter")


def check_batch_size(action: str, entries: int) -> None:
    """Refuse a batch without entries, or with too many."""
    if not entries:
        raise refused(action, "The batch has no entries.", "EmptyBatchRequest")
    if entries > BATCH_ENTRIES:
        sentence = f"The batch has {entries} entries, more than {BATCH_ENTRIES}."
        raise refused(action, sentence, "TooManyEntriesInBatchRequest")
