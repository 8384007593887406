"""Durations as people write them: `90s`, `10m`, `1h30m`, or seconds."""

from __future__ import annotations

import re
from typing import Final

UNIT_SECONDS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}

_NUMBER: Final = r"\d+(?:\.\d+)?"
_PARTS: Final = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in UNIT_SECONDS))


def parse_duration(text: str) -> float:
    """Seconds, of `1h30m` for example; a number without a unit is in seconds.

    Raises:
        ValueError: it is no duration, or none at all; the message says what is one.
    """
    written = text.strip().lower()
    seconds = 0.0
    if re.fullmatch(_NUMBER, written):
        seconds = float(written)
    elif parts := _PARTS.fullmatch(written):
        seconds = sum(
            float(number or 0) * unit
            for number, unit in zip(parts.groups(), UNIT_SECONDS.values(), strict=True)
        )
    if not 0 < seconds < float("inf"):
        raise ValueError(f"expected a duration such as 90s, 10m, 1h30m, or seconds, got {text!r}")
    return seconds


def duration_text(seconds: float) -> str:
    """The two largest units of a duration: `1h30m`, `45s`."""
    left = round(seconds)
    parts: list[str] = []
    for unit, length in UNIT_SECONDS.items():
        number, left = divmod(left, length)
        if number or (parts and len(parts) < 2):  # noqa: PLR2004 - units that are shown
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2]) or "0s"
