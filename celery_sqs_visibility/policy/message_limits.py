"""How large a message may be, and how to say that it is larger."""

from __future__ import annotations

import re
from typing import Final

from celery_sqs_visibility.errors import MessageTooLargeError, RequestRefusedError, SQSError
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: The largest payload in S3. A worker has several in memory, each more than once while it is decoded.
PAYLOAD_BYTES: Final = 64 * MESSAGE_BYTES

#: SQS's own sentence about a message beyond the queue's MaximumMessageSize, which a sender may not ask for.
_LIMIT: Final = re.compile(r"must be shorter than (\d+) bytes")


def limit_told(error: SQSError) -> int | None:
    """The queue's MaximumMessageSize, where SQS refused a message because of it."""
    told = _LIMIT.search(str(error)) if isinstance(error, RequestRefusedError) else None
    return int(told[1]) if told else None


def too_large(
    queue: str, size: int, limit: int = MESSAGE_BYTES, *, pointer: bool = False
) -> MessageTooLargeError:
    """The error for a message of `size` bytes; `pointer`: even with its payload in S3."""
    remedy = (
        "its attributes are too large"
        if pointer
        else "put the data into S3 and send its key, or set the option payload_bucket, which does that"
    )
    taker = "SQS" if limit == MESSAGE_BYTES else "the queue"
    sentence = (
        f"the message for queue {queue!r} has {size:,} bytes with its attributes, and {taker} takes "
        f"{limit:,}: {remedy}"
    )
    return MessageTooLargeError(sentence, code="MessageTooLong", action="SendMessage")


def payload_too_large(queue: str, size: int) -> MessageTooLargeError:
    """The error for a payload that no worker would fetch."""
    return MessageTooLargeError(
        f"the message for queue {queue!r} has {size:,} bytes, and a payload in S3 may have "
        f"{PAYLOAD_BYTES:,}, since workers hold it in memory: put the data into S3 and send its key",
        code="MessageTooLong",
        action="PutObject",
    )
