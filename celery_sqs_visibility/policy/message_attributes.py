"""Message attributes and sizes: legal characters, limits, and bytes.

Source: "Amazon SQS message metadata" (names, types and values count towards the message's size; none may be
empty) and API_SendMessage (the characters of XML 1.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from celery_sqs_visibility.errors import MessageTooLargeError, RequestRefusedError, SQSError
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: The only data type we send.
DATA_TYPE = "String"

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: The largest payload in S3. A worker has several in memory, each more than once while it is decoded.
PAYLOAD_BYTES: Final = 64 * MESSAGE_BYTES

#: SQS's sentence about a message larger than the queue's MaximumMessageSize: a sender may lack the permission
#: to read that attribute.
_LIMIT: Final = re.compile(r"must be shorter than (\d+) bytes")


def legal(text: str) -> str:
    r"""The text, its illegal characters written as in a Python literal: `\x00`, `\ud800`."""
    return _ILLEGAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def beginning(text: str, most: int) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def last_lines(text: str, most: int, line_length: int) -> str:
    """The last whole lines, `most` characters in all; a line is cut to `line_length`.

    A traceback that ends with a very long message keeps some frames.
    """
    kept: list[str] = []
    for line in reversed(text.splitlines()):
        kept.append(beginning(line, line_length))
        most -= len(kept[-1]) + 1
        if most < 0:
            kept.pop()
            break
    return "\n".join(reversed(kept))


def message_bytes(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of a message as SQS counts them: the body, and of each attribute its name, type and value."""
    # Nearly all bodies are ASCII: encoding them only to count would be slow.
    total = len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
    for name, attribute in attributes.items():
        texts = (name, attribute.get("DataType") or "", attribute.get("StringValue") or "")
        total += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        total += len(attribute.get("BinaryValue") or b"")
    return total


def is_asked_for(name: str, patterns: Iterable[str]) -> bool:
    """Whether MessageAttributeNames, `patterns`, select an attribute: "All", ".*", "prefix.*" or its name."""
    return any(
        pattern in {"All", ".*", name} or (pattern.endswith(".*") and name.startswith(pattern[:-2]))
        for pattern in patterns
    )


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
        else "put the data into S3 and send its key, or set the option payload_store, which does that"
    )
    taker = "SQS" if limit == MESSAGE_BYTES else "the queue"
    counted = "counts more, and " if size < limit else ""
    sentence = (
        f"the message for queue {queue!r} has {size:,} bytes with its attributes, and {taker} {counted}takes "
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
