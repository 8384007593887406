"""SQS's names of queues and of their attributes, and ARNs: `arn:partition:service:region:account:name`."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Final

FIFO_SUFFIX: Final = ".fifo"

MAX_NAME_CHARACTERS: Final = 80

# From kombu.transport.SQS.CHARS_REPLACE_TABLE, because a migrating fleet shares its queues.
_LEGAL_CHARACTERS: Final = str.maketrans(
    {mark: "_" for mark in string.punctuation if mark not in "-_."} | {".": "-"}
)

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")


def sqs_name(name: str, prefix: str = "") -> str:
    """SQS's name for Celery's, by the rules of kombu's SQS transport."""
    whole = prefix + name
    suffix = FIFO_SUFFIX if whole.endswith(FIFO_SUFFIX) else ""
    return whole.removesuffix(suffix).translate(_LEGAL_CHARACTERS) + suffix


def why_illegal(sqs_name: str) -> str | None:
    """Why SQS refuses a queue of that name, with the remedy; `None` if it accepts it."""
    if len(sqs_name) > MAX_NAME_CHARACTERS:
        return (
            f"it has {len(sqs_name)} characters, and SQS takes {MAX_NAME_CHARACTERS}, '.fifo' included: "
            "shorten it, or the option queue_name_prefix"
        )
    if not _LEGAL_NAME.fullmatch(sqs_name):
        return "SQS takes ASCII letters, digits, hyphens and underscores: rename the queue"
    return None


def arn_of(service: str, region: str, account: str, name: str) -> str:
    """The ARN of a resource that has a region and an account."""
    return f"arn:{partition_of(region)}:{service}:{region}:{account}:{name}"


def account_and_name(arn: str) -> tuple[str, str]:
    """The account and the name in an ARN."""
    account, name = arn.split(":")[-2:]
    return account, name


def region_of(arn: str) -> str:
    """The region in an ARN."""
    return arn.split(":")[-3]


def beside(arn: str, name: str) -> str:
    """The ARN of another name in the same service, region and account."""
    return f"{arn.rpartition(':')[0]}:{name}"


def partition_of(region: str) -> str:
    """The first part of ARNs in a region."""
    named = {"cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "us-isob": "aws-iso-b"}
    beginnings = sorted(named, key=len, reverse=True)
    return next((named[each] for each in beginnings if region.startswith(f"{each}-")), "aws")


ARN: Final = "QueueArn"
KEY: Final = "KmsMasterKeyId"
REDRIVE_POLICY: Final = "RedrivePolicy"

#: How long a queue keeps a message, in seconds.
RETENTION: Final = "MessageRetentionPeriod"

#: Whether a queue is a FIFO queue, which it is for ever.
FIFO: Final = "FifoQueue"

#: Attributes that only FIFO queues have.
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

#: SQS's own key, which needs no permission: everybody in the queue's account may use it through SQS.
AMAZONS_KEY: Final = "alias/aws/sqs"


def key_in(attributes: Mapping[str, str]) -> str:
    """The KMS key that a queue is encrypted with: its ARN, id or alias; "" for none or SQS's own."""
    key = attributes.get(KEY, "")
    return "" if key.endswith(AMAZONS_KEY) else key


def creation_attributes(name: str, attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes that a queue of that name can have: SQS refuses those of the other kind."""
    if name.endswith(FIFO_SUFFIX):
        return {**attributes, FIFO: "true"}
    return {key: value for key, value in attributes.items() if key not in FIFO_ATTRIBUTES}


def redrive_policy(dead_letter_arn: object, max_receive_count: object) -> dict[str, object]:
    """The document to store as `REDRIVE_POLICY`."""
    return {"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": max_receive_count}
