"""Bounds of the memory and time that a content takes once it is decoded, measured before that.

kombu's decoders have no bounds. Content types that are not measured (pickle, a user's own) are trusted.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container
from typing import Any, Final

from celery_sqs_visibility.contacts.channel import DECODERS
from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.message_limits import (
    MAX_CONTAINERS,
    MAX_NESTING,
    check_count,
    check_json,
    too_deep,
)

#: A value of YAML takes ten times the memory of a list while it is read (650 bytes), and 0.1 ms.
MAX_YAML_VALUES: Final = MAX_CONTAINERS // 10

#: The key that copies another object's values, which may each be such a copy: PyYAML never writes it.
YAML_MERGE: Final = "<<"
YAML_MERGE_TAG: Final = "tag:yaml.org,2002:merge"

#: A number to the base of 60 has no bound of digits in PyYAML, and takes a square of their number in time.
MOST_DIGITS: Final = 4300  # as Python's own bound of decimal numbers
YAML_NUMBER: Final = re.compile(r"[-+0-9_:]*")
YAML_INT_TAG: Final = "tag:yaml.org,2002:int"  # by which PyYAML reads spaces and other digits as well

#: The content type that kombu takes for none. Python's codecs decode content without a decoder, by its
#: encoding: some of them inflate (bz2, zlib), and punycode takes a square of the length in time.
NO_TYPE: Final = "application/data"
BINARY: Final = ("binary", "ascii-8bit")
TEXT_CODECS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859-1", "cp1252")


def check_content(
    content: str | bytes,
    content_type: str | None,
    encoding: str | None,
    accept: Container[str] | None = None,
) -> None:
    """Measure content before it is decoded. Errors of its format are left to its decoder.

    Content of a type that is not in `accept` is refused by kombu, and not measured.

    Raises:
        TooLargeError: it would become more than may be.
    """
    if (check := CHECKS.get(content_type or NO_TYPE)) is not None:
        if accept is None or content_type in accept:
            check(content)
    elif (content_type or NO_TYPE) not in DECODERS:
        _check_encoding(content, encoding or "utf-8")


def _check_encoding(content: str | bytes, encoding: str) -> None:
    if isinstance(content, str) or encoding.lower() in BINARY:
        return  # it stays as it is
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        return
    if codec not in TEXT_CODECS:
        raise TooLargeError(f"its content encoding is {encoding!r}, whose content has no bound")


def _check_messagepack(content: str | bytes) -> None:
    """Count lists and objects, of which none is kept. MessagePack itself bounds their nesting (to 1,024)."""
    if len(content) <= MAX_CONTAINERS or isinstance(content, str):
        return
    try:
        import msgpack  # noqa: PLC0415 - kombu has it where it is installed
    except ImportError:
        return
    counted = 0

    def count(_: object) -> None:
        nonlocal counted
        counted += 1
        check_count(counted)

    try:
        msgpack.unpackb(content, raw=True, strict_map_key=False, list_hook=count, object_hook=count)
    except TooLargeError:
        raise
    except Exception:  # noqa: BLE001 - its decoder raises it again, and kombu translates it
        return


def _check_yaml(content: str | bytes) -> None:
    """Count values, and look for keys that multiply them; PyYAML takes as long to parse as to make them."""
    try:
        import yaml  # noqa: PLC0415 - kombu has it where it is installed
    except ImportError:
        return
    try:
        _check_events(yaml, content)
    except TooLargeError:
        raise
    except Exception:  # noqa: BLE001 - as above; PyYAML lets some escape that are none of its own
        return


def _check_events(yaml: Any, content: str | bytes) -> None:
    counted, depth = 0, 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        counted += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.ScalarEvent):
            _check_scalar(event)
        if depth > MAX_NESTING:
            raise too_deep()
        if counted > MAX_YAML_VALUES:
            raise TooLargeError(f"it holds more than {MAX_YAML_VALUES:,} values of YAML")


def _check_scalar(event: Any) -> None:
    plain = event.implicit[0]
    if event.tag == YAML_MERGE_TAG or (plain and event.value == YAML_MERGE):
        raise TooLargeError("it has a merge key of YAML (<<), which may make gigabytes of a few lines")
    if len(event.value) <= MOST_DIGITS:
        return
    if event.tag == YAML_INT_TAG or YAML_NUMBER.fullmatch(event.value):
        raise TooLargeError(f"it has a number of {len(event.value):,} characters")


CHECKS: Final[dict[str, Callable[[str | bytes], None]]] = {
    "application/json": check_json,
    "application/x-yaml": _check_yaml,
    "application/x-msgpack": _check_messagepack,
}
