"""What makes an option's value of what a user wrote, or says in one sentence why it cannot be."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.retry_delays import DelayRule, parse_delay

logger = logging.getLogger(__name__)

#: Of kombu's `predefined_queues`: a retry delay by receive count, which error_visibility_timeout replaces.
BACKOFF_KEYS = frozenset({"backoff_policy", "backoff_tasks"})


class Parser(Protocol):
    """What makes an option's value of what was given."""

    def __call__(self, name: str, value: Any) -> Any:
        """Raise `OptionError` if it is not what the option called `name` takes."""
        ...


@dataclass(frozen=True)
class Seconds:
    """A duration within bounds; numbers, or text of them as from the environment."""

    low: float
    high: float
    whole: bool = False
    why: str = ""
    zero: bool = False  # 0 is allowed although it is below `low`

    @property
    def bounds(self) -> str:
        """For the reference."""
        return ("0, or " if self.zero else "") + f"{self.low:g} to {self.high:g}"

    def __call__(self, name: str, value: Any) -> float:
        """The seconds, an `int` if they must be whole."""
        seconds = number(name, value)
        if not (self.low <= seconds <= self.high or (self.zero and seconds == 0)):
            raise OptionError(
                f"expected {name} to be {'0 or ' if self.zero else ''}between {self.low:g} and {self.high:g} "
                f"seconds{self.why}, got {value!r}"
            )
        if not self.whole:
            return seconds
        if seconds != int(seconds):
            raise OptionError(f"expected {name} to be whole seconds, as SQS takes them, got {value!r}")
        return int(seconds)


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
    """A finite number, be it given as text; never a bool."""
    if not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            pass
        else:
            if math.isfinite(number):
                return number
    raise OptionError(f"expected {name} to be a number of seconds, got {value!r}")


def instance_of(expected: type | tuple[type, ...], noun: str) -> Parser:
    """Take what is of that type, which the error calls `noun`."""

    def parse(name: str, value: Any) -> Any:
        if not isinstance(value, expected):
            raise OptionError(f"expected {name} to be {noun}, got {value!r}")
        return value

    return parse


def delay(name: str, value: Any) -> DelayRule | None:
    """An `error_visibility_timeout`: as `parse_delay` takes it, numbers as text, or a dotted path."""
    if isinstance(value, str):
        value = number(name, value) if value.strip()[:1].isdigit() else _imported(name, value)
    elif isinstance(value, (list, tuple)):
        value = [
            number(f"{name}[{i}]", item) if isinstance(item, str) else item for i, item in enumerate(value)
        ]
    try:
        return parse_delay(name, value)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _imported(name: str, path: str) -> Any:
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"expected {name} to be seconds, a list of seconds or the dotted path of a callable, "
            f"got {path!r}, which cannot be imported: {error}"
        ) from error


def queues(name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    """`predefined_queues`: each has a url, and a name that ends with .fifo if the url does."""
    for queue, settings in mapping(name, value).items():
        if not isinstance(settings, Mapping) or not settings.get("url"):
            raise OptionError(f"expected {name}[{queue!r}] to be a mapping with a 'url', got {settings!r}")
        if str(settings["url"]).endswith(".fifo") != str(queue).endswith(".fifo"):
            raise OptionError(
                f"expected the name {queue!r} in {name} and its url {settings['url']!r} to agree: "
                "the names of FIFO queues, and of no others, end with .fifo"
            )
        for key in settings.keys() & BACKOFF_KEYS:
            logger.warning(
                "%s[%r][%r] does nothing here: set error_visibility_timeout, of the transport or of a task",
                name,
                queue,
                key,
            )
    return value  # type: ignore[no-any-return]


mapping = instance_of(Mapping, "a mapping")
text = instance_of(str, "text")


on_exhausted = OneOf(("delete", "keep"))
on_lost = OneOf(("continue", "terminate"))


def queue_name(name: str, value: Any) -> str:
    """The name of a queue as Celery knows it, which an ARN or a URL is not."""
    if any(mark in text(name, value) for mark in ":/"):
        raise OptionError(
            f"expected {name} to be the name of a queue, not an ARN or a URL, got {value!r}; "
            "predefined_queues gives URLs names"
        )
    return str(value)


def flag(name: str, value: Any) -> bool:
    """True or False, be it given as text or as 0 or 1."""
    flags = {"true": True, "1": True, "false": False, "0": False}
    try:
        return flags[str(value).strip().lower()]
    except KeyError:
        raise OptionError(f"expected {name} to be True or False, got {value!r}") from None
