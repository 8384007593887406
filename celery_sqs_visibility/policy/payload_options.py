"""The options for payloads in S3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import text
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: S3's longest key has 1024 bytes, and a UUID follows the prefix.
PREFIX_BYTES = 900


def bucket(name: str, value: Any) -> str:
    """The name of a bucket: no URL, no path."""
    if "/" in text(name, value):
        raise OptionError(
            f"expected {name} to be the name of an S3 bucket, got {value!r}; see payload_prefix"
        )
    return str(value)


def prefix(name: str, value: Any) -> str:
    """What a key begins with."""
    if len(text(name, value).encode()) > PREFIX_BYTES:
        raise OptionError(f"expected {name} to have at most {PREFIX_BYTES} bytes, got {len(value.encode())}")
    return str(value)


class Bytes:
    """A size within a message's, also as text."""

    bounds = f"0 to {MESSAGE_BYTES}"

    def __call__(self, name: str, value: Any) -> int:
        """The bytes."""
        try:
            size = -1 if isinstance(value, (bool, float)) else int(value)
        except (TypeError, ValueError):
            size = -1
        if not 0 <= size <= MESSAGE_BYTES:
            raise OptionError(
                f"expected {name} to be between 0 and {MESSAGE_BYTES} bytes (SQS's largest message), "
                f"got {value!r}"
            )
        return size


@dataclass(frozen=True, kw_only=True)
class PayloadOptions:
    """Where the payloads of large messages go."""

    payload_bucket: str | None = option(
        None,
        bucket,
        "The S3 bucket for payloads of messages that are too large for SQS, in the format of Amazon's "
        "extended client. Producers and workers need it; payloads in other buckets are not read.",
    )
    payload_threshold: int = option(
        MESSAGE_BYTES,
        Bytes(),
        "Messages with more bytes than this, attributes included, have their payload in S3; so have those "
        "beyond their queue's own limit.",
    )
    payload_prefix: str = option(
        "",
        prefix,
        "What the keys of payloads in the bucket begin with. Payloads with other keys are not read: a "
        "worker's prefix is its producers', or a beginning of it.",
    )

    @property
    def readable_payloads(self) -> ReadablePayloads:
        """The objects in S3 that messages may point to."""
        return ReadablePayloads(self.payload_bucket, self.payload_prefix)

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc] # the next in Options' line has one
        set_in_vain = {
            "payload_threshold": self.payload_threshold != MESSAGE_BYTES,
            "payload_prefix": self.payload_prefix,
        }
        for name, is_set in set_in_vain.items():
            if is_set and self.payload_bucket is None:
                raise OptionError(
                    f"expected payload_bucket to be set where {name} is: without it nothing goes to S3"
                )
