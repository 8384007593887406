"""Durations and prices, in the form that operators read and write."""

from __future__ import annotations

import re
from typing import Final

from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

UNIT_SECONDS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}

_NUMBER: Final = r"\d+(?:\.\d+)?"
_PARTS: Final = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in UNIT_SECONDS))


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Parse a duration, for example `1h30m`. A number without a unit is in seconds. Returns seconds.

    Raises:
        ValueError: it is not a duration, or 0 without `zero`. The message has examples.
    """
    written = text.strip().lower()
    seconds = -1.0
    if re.fullmatch(_NUMBER, written):
        seconds = float(written)
    elif written and (parts := _PARTS.fullmatch(written)):
        seconds = sum(
            float(number or 0) * unit
            for number, unit in zip(parts.groups(), UNIT_SECONDS.values(), strict=True)
        )
    if not (0 < seconds < float("inf") or (zero and seconds == 0)):
        raise ValueError(f"expected a duration such as 90s, 10m, 1h30m, or seconds, got {text!r}")
    return seconds


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: `1h30m`, `45s`, `0.5s`."""
    if seconds < UNIT_SECONDS["m"]:
        return f"{seconds:.3g}s"
    left = round(seconds)
    parts: list[str] = []
    for unit, length in UNIT_SECONDS.items():
        number, left = divmod(left, length)
        if number or (parts and len(parts) < 2):  # noqa: PLR2004 - units that are shown
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2])


#: Of us-east-1 in 2025, beyond the first million a month (https://aws.amazon.com/sqs/pricing/).
USD_A_MILLION_REQUESTS: Final = 0.40
USD_A_MILLION_FIFO_REQUESTS: Final = 0.50


def usd_of(requests: float, queue: str) -> float:
    """The price of requests to a queue; a FIFO queue's name ends in `.fifo`."""
    price = USD_A_MILLION_FIFO_REQUESTS if queue.endswith(FIFO_SUFFIX) else USD_A_MILLION_REQUESTS
    return requests * price / 1_000_000
