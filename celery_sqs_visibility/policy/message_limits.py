"""Limits of a message: its characters, its size, its ids, and the lists and objects in its JSON.

Source: "Amazon SQS message metadata" (names, types and values count towards the message's size; none may be
empty) and API_SendMessage (the characters of XML 1.0).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from celery_sqs_visibility.errors import (
    InvalidIdError,
    MessageTooLargeError,
    RequestRefusedError,
    SQSError,
    TooLargeError,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: The only data type we send.
DATA_TYPE: Final = "String"

_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: The largest payload in S3. A worker has several in memory, each more than once during decoding.
PAYLOAD_BYTES: Final = 64 * MESSAGE_BYTES

#: SQS's error about the queue's MaximumMessageSize, an attribute that a sender may lack permission to read.
_LIMIT: Final = re.compile(r"must be shorter than (\d+) bytes")


def escape_illegal(text: str) -> str:
    r"""Write illegal characters as in a Python literal: `\x00`, `\ud800`."""
    return _ILLEGAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def truncated(text: str, most: int) -> str:
    """Cut the text to `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def last_lines(text: str, most: int, line_length: int) -> str:
    """Keep the last whole lines, up to `most` characters in total, each cut to `line_length`.

    So a traceback that ends with a very long message keeps some frames.
    """
    kept: list[str] = []
    for line in reversed(text.splitlines()):
        kept.append(truncated(line, line_length))
        most -= len(kept[-1]) + 1
        if most < 0:
            kept.pop()
            break
    return "\n".join(reversed(kept))


def message_bytes(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Count a message's bytes as SQS does: the body, and each attribute's name, type and value."""
    # Nearly all bodies are ASCII: encoding them only to count would be slow.
    total = len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
    for name, attribute in attributes.items():
        texts = (name, attribute.get("DataType") or "", attribute.get("StringValue") or "")
        total += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        total += len(attribute.get("BinaryValue") or b"")
    return total


def is_selected(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether MessageAttributeNames select an attribute: "All", ".*", "prefix.*" or its name."""
    return any(
        pattern in {"All", ".*", name} or (pattern.endswith(".*") and name.startswith(pattern[:-2]))
        for pattern in patterns
    )


def limit_in(error: SQSError) -> int | None:
    """The queue's MaximumMessageSize, if SQS refused a message because of it."""
    told = _LIMIT.search(str(error)) if isinstance(error, RequestRefusedError) else None
    return int(told[1]) if told else None


def too_large(
    queue: str, size: int, limit: int = MESSAGE_BYTES, *, pointer: bool = False
) -> MessageTooLargeError:
    """The error for a message of `size` bytes; with `pointer`, for one with its payload in S3."""
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
    """The error for a payload that is too large for any worker to fetch."""
    return MessageTooLargeError(
        f"the message for queue {queue!r} has {size:,} bytes, and a payload in S3 may have "
        f"{PAYLOAD_BYTES:,}, since workers hold it in memory: put the data into S3 and send its key",
        code="MessageTooLong",
        action="PutObject",
    )


#: API_SendMessage: `MessageGroupId` and `MessageDeduplicationId` are of letters, digits and punctuation.
_ID: Final = re.compile(r"[!-~]{1,128}")
_NOT_OF_AN_ID: Final = re.compile(r"[^!-~]")

#: The headers of a task that a user may have set. They appear in logs, results and dead letters.
_NAMES: Final = ("id", "shadow", "group")

#: Characters that workers refuse in these.
CONTROL_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def checked_id(name: str, value: Any, queue: str) -> str:
    """Return the value as text, if SQS accepts it as that property of a message.

    Raises:
        InvalidIdError: SQS would refuse it, and with it all messages of its batch.
    """
    text = str(value)
    if _ID.fullmatch(text):
        return text
    found = _NOT_OF_AN_ID.search(text)
    where = f"{found[0]!r} at {found.start()}" if found else f"a length of {len(text)}"
    hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    raise InvalidIdError(
        f"expected the {name} of a message for queue {queue!r} to have 1 to 128 ASCII letters, digits and "
        f"punctuation, got {text[:200]!r}, with {where}; its hash will do: {hashed} "
        "(hashlib.sha256(text.encode()).hexdigest())"
    )


def check_names(headers: Mapping[str, Any]) -> None:
    """Raise `InvalidIdError` for a name in a task's headers because of which no worker would run the task."""
    for name in _NAMES:
        value = headers.get(name)
        if value is None or (isinstance(value, str) and value.isprintable()):
            continue
        if not isinstance(value, str):
            kind = type(value).__name__
            raise InvalidIdError(
                f"expected the {name} of task {headers['task']!r} to be text, got {value!r} of type {kind}: "
                f"give {str(value)!r}"
            )
        if found := CONTROL_CHARACTERS.search(value):
            raise InvalidIdError(
                f"expected the {name} of task {headers['task']!r} to have no control characters, got "
                f"{value[:200]!r}, with {found[0]!r} at {found.start()}"
            )


#: A list is as deep as an object.
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))

#: The most lists and objects in a message. Each takes 60 bytes of memory or more: at worst 100 MB in all.
MAX_CONTAINERS: Final = 500_000

#: The most levels: a pool's process could not unpickle deeper ones, because of Python's recursion limit.
MAX_NESTING: Final = 400

#: JSON with no more brackets than this is within the limits, and is not measured.
FEW_BRACKETS: Final = 100

_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
#: A text without its characters: quotes and brackets, also without the closing quote.
_MARKS_IN_TEXT: Final = re.compile(rb'"[^"]*"?')


def check_json(
    content: str | bytes, max_containers: int = MAX_CONTAINERS, max_nesting: int = MAX_NESTING
) -> None:
    """Measure JSON before it is decoded, in time linear in its length.

    Raises:
        TooLargeError: it holds too many lists and objects, or is nested too deep.
    """
    if isinstance(content, str):
        opened = content.count("[") + content.count("{")
    else:
        opened = content.count(b"[") + content.count(b"{")
    if opened <= max_nesting and opened <= max_containers:  # most messages
        return
    lists = _lists(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    check_count(lists.count(b"["), max_containers)
    if _depth(lists) > max_nesting:
        raise too_deep(max_nesting)


def check_count(counted: int, most: int = MAX_CONTAINERS) -> None:
    """Raise `TooLargeError` for too many lists and objects."""
    if counted > most:
        raise TooLargeError(f"it holds {counted:,} lists and objects, and {most:,} are read")


def too_deep(most: int = MAX_NESTING) -> TooLargeError:
    """The error for content that is nested too deep."""
    return TooLargeError(f"its lists and objects are nested more than {most:,} levels deep")


def _lists(content: bytes) -> bytes:
    """The brackets outside of strings, all written as those of lists."""
    if b"\\" in content:
        content = _ESCAPED.sub(b"", content)
    marks = content.translate(_AS_LISTS, _NO_MARKS)
    # Most strings have no bracket. Two adjacent quotes may belong to two strings: no bracket is between them.
    return _MARKS_IN_TEXT.sub(b"", marks.replace(b'""', b""))


def _depth(lists: bytes) -> int:
    return max(accumulate(map(_STEPS.__getitem__, lists)), default=0)
