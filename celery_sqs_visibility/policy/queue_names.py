"""Names of queues at SQS, and Amazon Resource Names: `arn:partition:service:region:account:name`."""

from __future__ import annotations

import re
import string
from typing import Final

FIFO_SUFFIX: Final = ".fifo"

LONGEST_NAME_CHARACTERS: Final = 80

# kombu.transport.SQS.CHARS_REPLACE_TABLE: a fleet that migrates one process at a time shares its queues.
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
    """Why SQS takes no queue of that name, with the remedy; `None` if it does."""
    if len(sqs_name) > LONGEST_NAME_CHARACTERS:
        return (
            f"it has {len(sqs_name)} characters, and SQS takes {LONGEST_NAME_CHARACTERS}, '.fifo' included: "
            "shorten it, or the option queue_name_prefix"
        )
    if not _LEGAL_NAME.fullmatch(sqs_name):
        return "SQS takes letters of ASCII, digits, hyphens and underscores: rename the queue"
    return None


def arn_of(service: str, region: str, account: str, name: str) -> str:
    """The ARN of a thing that has a region and an account."""
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
