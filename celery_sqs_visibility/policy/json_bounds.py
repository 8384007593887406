"""Lists and objects in JSON, counted before Python makes them; linear in the length of any text."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

from celery_sqs_visibility.errors import TooLargeError

#: A list is as deep as an object.
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))

#: The most lists and objects of a content. Each takes 60 bytes of memory or more: at the worst 100 MB in all.
MAX_CONTAINERS: Final = 500_000

#: The most levels: Python's limit of recursion lets a pool's process unpickle no deeper structure.
MAX_NESTING: Final = 400

#: JSON with no more brackets than this is within the bounds, and is not measured.
FEW_BRACKETS: Final = 100

_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
#: A text without its characters: quotes and brackets, also without the closing quote.
_MARKS_IN_TEXT: Final = re.compile(rb'"[^"]*"?')


def check_json(
    content: str | bytes, max_containers: int = MAX_CONTAINERS, max_nesting: int = MAX_NESTING
) -> None:
    """Measure JSON before it is decoded. Content that has too few brackets for any bound is only counted.

    Raises:
        TooLargeError: it holds more lists and objects, or is nested deeper, than may be.
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
    """Raise `TooLargeError` for more lists and objects than may be."""
    if counted > most:
        raise TooLargeError(f"it holds {counted:,} lists and objects, and {most:,} are read")


def too_deep(most: int = MAX_NESTING) -> TooLargeError:
    """The error for content that is nested deeper than may be."""
    return TooLargeError(f"its lists and objects are nested more than {most:,} levels deep")


def _lists(content: bytes) -> bytes:
    """The brackets outside of texts, all written as those of lists."""
    if b"\\" in content:
        content = _ESCAPED.sub(b"", content)
    marks = content.translate(_AS_LISTS, _NO_MARKS)
    # Most texts hold no bracket. Two quotes side by side may belong to two texts: no bracket is between them.
    return _MARKS_IN_TEXT.sub(b"", marks.replace(b'""', b""))


def _depth(lists: bytes) -> int:
    return max(accumulate(map(_STEPS.__getitem__, lists)), default=0)
