"""How much a message's content may unfold to: a kilobyte of it may become gigabytes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: Most bytes of a decompressed body by default, a small multiple of what SQS takes of it compressed. At the
#: worst its run takes 250 MB (short texts in JSON), or 400 MB (in MessagePack): tests/worker/test_bombs.py.
DECOMPRESSED_BYTES: Final = 8 * MESSAGE_BYTES

#: Most lists and objects of a body by default: at the worst 100 MB in Python.
CONTAINERS: Final = 500_000

#: Most levels by default: a pool's process takes no more in a pickle, by Python's own limit of recursion.
NESTING: Final = 400

#: The least that the options may be.
LEAST_CONTAINERS: Final = 1000
LEAST_NESTING: Final = 100


class Count:
    """A whole number from `least` on."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.bounds = f"{least} or more"

    def __call__(self, name: str, value: Any) -> int:
        """The number, also as text."""
        try:
            number = -1 if isinstance(value, (bool, float)) else int(value)
        except (TypeError, ValueError):
            number = -1
        if number < self._least:
            raise OptionError(f"expected {name} to be a whole number, {self.bounds}, got {value!r}")
        return number


@dataclass(frozen=True, kw_only=True)
class ContentOptions:
    """What is refused before it is decompressed or decoded."""

    decompressed_max_bytes: int = option(
        DECOMPRESSED_BYTES,
        Count(MESSAGE_BYTES),
        "Bytes that the body of a compressed message may have when it is decompressed; one with its payload "
        "in S3 may have 64 MiB. A larger one is a bad message.",
    )
    containers_max: int = option(
        CONTAINERS,
        Count(LEAST_CONTAINERS),
        "How many lists and objects a message may hold in JSON or MessagePack; each takes 60 bytes of memory "
        "or more, and two of its body. In YAML a tenth of it bounds the values of any kind. One with more is "
        "a bad message.",
    )
    nesting_max: int = option(
        NESTING,
        Count(LEAST_NESTING),
        "How many levels deep its lists and objects may be nested in JSON or YAML. One with more is a bad "
        "message.",
    )


#: Of a message that came by no connection of ours.
DEFAULT_LIMITS: Final = ContentOptions()
