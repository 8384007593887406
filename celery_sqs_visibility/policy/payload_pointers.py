"""Pointers to payloads in S3, in the format of Amazon's extended clients for SQS and SNS.

The body of such a message is a JSON list of a Java class's name and an object with bucket and key. A reserved
message attribute has the payload's size in bytes. Sources: amazon-sqs-java-extended-client-lib and
payload-offloading-java-common-lib-for-aws.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery_sqs_visibility.errors import UnreadableError

#: The reserved message attribute; Java clients before version 2 wrote the other one.
SIZE_ATTRIBUTE: Final = "ExtendedPayloadSize"
LEGACY_SIZE_ATTRIBUTE: Final = "SQSLargePayloadSize"
SIZE_ATTRIBUTES: Final = frozenset({SIZE_ATTRIBUTE, LEGACY_SIZE_ATTRIBUTE})

#: The Java class that a pointer names. Readers go by the message attribute instead.
POINTER_CLASS: Final = "software.amazon.payloadoffloading.PayloadS3Pointer"

#: The end of our own keys, after a UUID.
OWN_KEY_END: Final = ".celery"
_OWN_KEY: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" + re.escape(OWN_KEY_END) + r"\Z")


@dataclass(frozen=True, slots=True)
class PayloadPointer:
    """Where a message's payload is; `body` is the message's body as received."""

    bucket: str
    key: str
    body: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class ReadablePayloads:
    """The objects that a pointer may name: those of the bucket whose keys begin with the prefix.

    Without that limit a sender could name any object that this process can read.
    """

    bucket: str | None = None
    prefix: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def check(self, pointer: PayloadPointer) -> None:
        """Raise `UnreadableError` for a pointer to any other object."""
        if pointer.bucket == self.bucket and pointer.key.startswith(self.prefix):
            return
        remedy = (
            f"payload_store is '{self}'; give its producer the same"
            if self.bucket
            else f"set payload_store to 's3://{pointer.bucket}'"
        )
        raise UnreadableError(f"its payload is in {pointer}, and only one in payload_store is read: {remedy}")


#: Without the option `payload_store` every pointer is refused.
NO_PAYLOADS: Final = ReadablePayloads()


def new_key(prefix: str) -> str:
    """The key of an object for one message."""
    return f"{prefix}{uuid.uuid4()}{OWN_KEY_END}"


def prefix_of(key: str) -> str | None:
    """The prefix of a key made by `new_key`, whose object belongs to one message; `None` for any other key.

    Another producer's object may have several readers, as with Amazon's extended client for SNS.
    """
    own = _OWN_KEY.search(key)
    return key[: own.start()] if own else None


def pointer_body(bucket: str, key: str) -> str:
    """The body of a message whose payload is that object, without spaces, like the Java library's."""
    return json.dumps([POINTER_CLASS, {"s3BucketName": bucket, "s3Key": key}], separators=(",", ":"))


def size_attribute(payload_bytes: int) -> dict[str, dict[str, str]]:
    """The message attribute that marks a body as a pointer."""
    return {SIZE_ATTRIBUTE: {"DataType": "Number", "StringValue": str(payload_bytes)}}


def pointer_in(body: str, attributes: Mapping[str, Any], readable: ReadablePayloads) -> PayloadPointer | None:
    """The pointer in a received message; `None` if the body is the payload.

    Raises:
        UnreadableError: the pointer is invalid, or names an object that may not be read.
    """
    if not attributes or SIZE_ATTRIBUTES.isdisjoint(attributes):
        return None
    pointer = _parsed(body)
    readable.check(pointer)
    return pointer


def _parsed(body: str) -> PayloadPointer:
    try:
        _, where = json.loads(body)
        bucket, key = where["s3BucketName"], where["s3Key"]
    except (ValueError, TypeError, KeyError, RecursionError):
        bucket = key = None
    if not (isinstance(bucket, str) and isinstance(key, str) and bucket and key):
        raise UnreadableError(
            f"it has the attribute {SIZE_ATTRIBUTE}, and its body is not a pointer to a payload in S3"
        )
    return PayloadPointer(bucket, key, body)
