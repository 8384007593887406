"""What a control queue's tags say: who has it, and since when nobody has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: The keys of a control queue's tags.
EXCHANGE_TAG: Final = "celery-control-exchange"
NODE_TAG: Final = "celery-control-node"
ALIVE_TAG: Final = "celery-control-alive"

#: Seconds from one sign of life to the next.
SIGN_OF_LIFE_SECONDS: Final = 300

#: Without a sign of life for so long, nobody has the queue. AWS lets clocks differ by five minutes.
STALE_SECONDS: Final = 1200

#: Characters that SQS takes in the value of a tag, and the most of them.
_ILLEGAL: Final = re.compile(r"[^\w .:/=+\-@]")
_LONGEST_VALUE: Final = 256


def tags_of(exchange: str, node: str, now: float) -> dict[str, str]:
    """The tags of a new queue; `now` is in seconds since the epoch."""
    names = {EXCHANGE_TAG: _legal(exchange), NODE_TAG: _legal(node)}
    return {**names, **sign_of_life(now)}


def sign_of_life(now: float) -> dict[str, str]:
    """The tag that says that somebody has the queue at `now`, in seconds since the epoch."""
    return {ALIVE_TAG: str(int(now))}


def is_stale(tags: Mapping[str, str], exchange: str, now: float) -> bool:
    """Whether it is a queue of that exchange which nobody has any more. Never one without all our tags."""
    alive = tags.get(ALIVE_TAG, "")
    ours = tags.get(EXCHANGE_TAG) == _legal(exchange) and NODE_TAG in tags
    return ours and alive.isascii() and alive.isdigit() and now - int(alive) > STALE_SECONDS


def _legal(text: str) -> str:
    return _ILLEGAL.sub("_", text)[:_LONGEST_VALUE]
