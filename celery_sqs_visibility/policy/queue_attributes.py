"""SQS's names of queue attributes that several modules make or read, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

ARN: Final = "QueueArn"
KEY: Final = "KmsMasterKeyId"
REDRIVE_POLICY: Final = "RedrivePolicy"

#: How long a queue keeps a message, in seconds.
RETENTION: Final = "MessageRetentionPeriod"

#: Whether a queue is a FIFO queue, which it is for ever.
FIFO: Final = "FifoQueue"

#: Attributes of FIFO queues alone.
FIFO_ATTRIBUTES: Final = frozenset(
    {FIFO, "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"}
)

#: All that a queue may be created with (API_CreateQueue).
ATTRIBUTES: Final = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "Policy",
    "ReceiveMessageWaitTimeSeconds",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
)

#: SQS's own key, which needs no permission in the queue's account: everybody there may use it through SQS.
AMAZONS_KEY: Final = "alias/aws/sqs"


def key_in(attributes: Mapping[str, str]) -> str:
    """The KMS key that a queue is encrypted with: its ARN, id or alias; "" of none, and of SQS's own."""
    key = attributes.get(KEY, "")
    return "" if key.endswith(AMAZONS_KEY) else key


def creation_attributes(name: str, attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes as a queue of that name of SQS's can have them: SQS refuses those of the other kind."""
    if name.endswith(FIFO_SUFFIX):
        return {**attributes, FIFO: "true"}
    return {key: value for key, value in attributes.items() if key not in FIFO_ATTRIBUTES}


def redrive_policy(dead_letter_arn: object, max_receive_count: object) -> dict[str, object]:
    """The document that is the value of `REDRIVE_POLICY`."""
    return {"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": max_receive_count}
