"""Durations in commands: `90`, `10m`, `2h`, `1d`, `1h30m`."""

from __future__ import annotations

import re
from typing import Final

import click

UNITS_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

_FORM: Final = re.compile(r"\d+|(\d+[smhd])+")
_PART: Final = re.compile(r"(\d+)([smhd]?)")


def duration(text: str) -> int:
    """Seconds; the type of an option."""
    if not _FORM.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no duration: write seconds, or for example 90s, 10m, 2h, 1d")
    return sum(int(number) * UNITS_SECONDS[unit] for number, unit in _PART.findall(text))


def in_words(seconds: float) -> str:
    """A duration in its largest whole unit: `3 d`, `5 h`, `12 min`, `40 s`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
