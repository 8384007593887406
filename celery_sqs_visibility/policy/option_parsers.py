"""Parsers of options: each returns the option's value, or raises one sentence that says what is wrong."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_keys import check_spelling
from celery_sqs_visibility.policy.queue_attributes import ATTRIBUTES
from celery_sqs_visibility.policy.retry_delays import DelayRule, parse_delay

CALLABLE = "the path of a callable, 'package.module:name'"

#: Its form: names, the last one after a colon or a dot.
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")

#: Makes an option's value of its name and what the user wrote; raises `OptionError`.
Parser = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Seconds:
    """A duration within bounds, also as text, as from the environment."""

    low: float
    high: float
    whole: bool = False
    why: str = ""
    zero: bool = False  # whether 0 is allowed below `low`
    clamp: bool = False  # whether more than `high` means `high`

    @property
    def bounds(self) -> str:
        """For the reference, without an exponent."""
        return ("0, or " if self.zero else "") + f"{self.low:.12g} to {self.high:.12g}"

    def __call__(self, name: str, value: Any) -> float:
        """The seconds, an `int` if they must be whole."""
        seconds = number(name, value)
        if self.clamp and seconds > self.high:
            seconds = self.high
        if not (self.low <= seconds <= self.high or (self.zero and seconds == 0)):
            raise OptionError(
                f"expected {name} to be {'0 or ' if self.zero else ''}between {self.low:.12g} and "
                f"{self.high:.12g} seconds{self.why}, got {value!r}"
            )
        if not self.whole:
            return seconds
        if seconds != int(seconds):
            raise OptionError(f"expected {name} to be whole seconds, as SQS takes them, got {value!r}")
        return int(seconds)


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, also as text."""

    low: int
    high: int

    @property
    def bounds(self) -> str:
        """For the reference."""
        return f"{self.low} to {self.high}"

    def __call__(self, name: str, value: Any) -> int:
        """The number."""
        with suppress(TypeError, ValueError, OverflowError):
            number = int(value)
            if number == float(value) and self.low <= number <= self.high and not isinstance(value, bool):
                return number
        raise OptionError(
            f"expected {name} to be a whole number between {self.low} and {self.high}, got {value!r}"
        )


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def bounds(self) -> str:
        """For the reference."""
        return " or ".join(f"`{word!r}`" for word in self.words)

    def __call__(self, name: str, value: Any) -> str:
        """The word."""
        if value not in self.words:
            raise OptionError(f"expected {name} to be {' or '.join(map(repr, self.words))}, got {value!r}")
        return str(value)


def number(name: str, value: Any) -> float:
    """A finite number, also as text; never a bool."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    raise OptionError(f"expected {name} to be a number of seconds, got {value!r}")


def instance_of(expected: type | tuple[type, ...], noun: str) -> Parser:
    """Take values of a type, which the error calls `noun`."""

    def parse(name: str, value: Any) -> Any:
        if not isinstance(value, expected):
            # What should be a mapping may hold secrets.
            got = f"a {type(value).__name__}" if expected is Mapping else repr(value)
            raise OptionError(f"expected {name} to be {noun}, got {got}")
        return value

    return parse


def delay(name: str, value: Any) -> DelayRule | None:
    """An `error_visibility_timeout`: as `parse_delay` takes it, numbers as text, or a dotted path."""
    if isinstance(value, str):
        value = number(name, value) if value.strip()[:1].isdigit() else _imported(name, value)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
        value = [number(f"{name}[{i}]", item) if isinstance(item, str) else item for i, item in items]
    try:
        return parse_delay(name, value)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _imported(name: str, path: str) -> Any:
    return imported(name, path, "seconds, a list of seconds or the dotted path of a callable")


def imported(name: str, path: str, noun: str) -> Any:
    """What the path leads to; where it leads nowhere, the error calls what is expected `noun`."""
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"expected {name} to be {noun}, got {path!r}, which cannot be imported: {error}"
        ) from error


mapping = instance_of(Mapping, "a mapping")
text = instance_of(str, "text")
on_exhausted = OneOf(("delete", "keep"))
on_lost = OneOf(("continue", "terminate"))


def queue_name(name: str, value: Any) -> str:
    """The name of a queue as Celery knows it: no ARN, no URL."""
    if any(mark in text(name, value) for mark in ":/"):
        raise OptionError(
            f"expected {name} to be the name of a queue, not an ARN or a URL, got {value!r}; "
            "predefined_queues gives URLs names"
        )
    return str(value)


def account(name: str, value: Any) -> str:
    """The number of an AWS account: text, since a number may begin with 0."""
    if isinstance(value, str) and re.fullmatch("[0-9]{12}", value):
        return value
    raise OptionError(f"expected {name} to be the 12 digits of an AWS account, as text, got {value!r}")


def queue_attributes(name: str, value: Any) -> dict[str, str]:
    """Attributes of CreateQueue, as SQS takes them: text, a policy as JSON."""
    check_spelling(name, mapping(name, value), ATTRIBUTES, "attribute")
    return {str(key): _attribute(inner) for key, inner in value.items()}


def _attribute(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, dict, list)) else str(value)


def tags(name: str, value: Any) -> dict[str, str]:
    """Tags of CreateQueue, which are text."""
    return {str(key): str(inner) for key, inner in mapping(name, value).items()}


def dotted_path(name: str, value: Any) -> str:
    """The path of a callable, `package.module:name`, which is not imported here."""
    if not PATH.fullmatch(text(name, value)):
        raise OptionError(f"expected {name} to be {CALLABLE}, got {value!r}")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """True or False, also as text or as 0 or 1."""
    flags = {"true": True, "1": True, "false": False, "0": False}
    try:
        return flags[str(value).strip().lower()]
    except KeyError:
        raise OptionError(f"expected {name} to be True or False, got {value!r}") from None
