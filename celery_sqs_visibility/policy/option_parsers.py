"""Declarations of options, and their parsers, which give a value or raise a sentence about what is wrong."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_names import check_keys, check_spelling, set_keys
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads
from celery_sqs_visibility.policy.queue_attributes import ATTRIBUTES
from celery_sqs_visibility.policy.retry_delays import DelayRule, parse_delay

CALLABLE = "the path of a callable, 'package.module:name'"

#: Form of that path: names, the last one after a colon or a dot.
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")

PROMETHEUS: Final = "prometheus"
OPENTELEMETRY: Final = "opentelemetry"
EMF: Final = "emf"
EXPORTERS: Final = (PROMETHEUS, OPENTELEMETRY, EMF)

LOOPBACK: Final = "127.0.0.1"
LAST_PORT: Final = 65535
ADDRESS: Final = re.compile(
    r"(\[(?P<ipv6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[^]/\s]+)?)\]|(?P<host>[^]:/\s[]*)):(?P<port>[0-9]{1,5})"
)

PAYLOAD_URL: Final = re.compile(r"s3://(?P<bucket>[A-Za-z0-9._-]+)(/(?P<prefix>.*))?", re.DOTALL)

#: S3's longest key has 1024 bytes, and a UUID follows the prefix.
PREFIX_BYTES = 900

#: Makes an option's value of its name and what the user wrote; raises `OptionError`.
Parser = Callable[[str, Any], Any]


def option(
    default: Any, parse: Parser, doc: str, shown_default: str | None = None, *, internal: bool = False
) -> Any:
    """A field of `Options`.

    Args:
        default: its value where the user gives none.
        parse: makes the value of what the user wrote.
        doc: its meaning, and when somebody changes it, in sentences.
        shown_default: the default in the reference, where `repr(default)` does not say it.
        internal: whether it is for tests and measurements, and not in the reference.
    """
    shown = repr(default) if shown_default is None else shown_default
    metadata = {
        "parse": parse,
        "doc": doc,
        "default": shown,
        "bounds": getattr(parse, "bounds", ""),
        "internal": internal,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


class HTTPAddress(NamedTuple):
    """Where a worker listens: the host's name or address, without brackets, and the port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
    """A whole number from `low` on, or within bounds; also as text."""

    low: int
    high: float = math.inf
    floats: bool = True  # whether 5.0 is 5
    unit: str = ""

    @property
    def bounds(self) -> str:
        """For the reference."""
        return f"{self.low} or more" if self.high == math.inf else f"{self.low} to {self.high}"

    def __call__(self, name: str, value: Any) -> int:
        """The number."""
        with suppress(TypeError, ValueError, OverflowError):
            number = int(value)
            refused = isinstance(value, bool if self.floats else (bool, float))
            if number == float(value) and self.low <= number <= self.high and not refused:
                return number
        wanted = f", {self.bounds}" if self.high == math.inf else f" between {self.low} and {self.high}"
        raise OptionError(f"expected {name} to be a whole number{wanted}{self.unit}, got {value!r}")


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


class ExporterNames:
    """Some of the exporters, as a list or as text with commas."""

    bounds = ", ".join(f"`{name!r}`" for name in EXPORTERS)

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        """Their names."""
        names = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(names, list | tuple | set) or not set(names) <= set(EXPORTERS):
            raise OptionError(f"expected {name} to be some of {', '.join(EXPORTERS)}, got {value!r}")
        return tuple(each for each in EXPORTERS if each in names)


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
            # A value in place of a mapping may hold secrets.
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
    """The object at a dotted path; where there is none, the error says that `noun` is expected."""
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"expected {name} to be {noun}, got {path!r}, which cannot be imported: {error}"
        ) from error


mapping = instance_of(Mapping, "a mapping")
text = instance_of(str, "text")
when_exhausted = OneOf(("delete", "keep"))
when_lost = OneOf(("continue", "terminate"))


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


def control_prefix(name: str, value: Any) -> str:
    """The beginning of the names of control queues: only characters that SQS takes."""
    if not re.fullmatch("[A-Za-z0-9_-]+", text(name, value)):
        raise OptionError(f"expected {name} to have letters, digits, hyphens and underscores, got {value!r}")
    return str(value)


def http_address(name: str, value: Any) -> HTTPAddress:
    """The address of a TCP port, with the loopback's where none is given."""
    found = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if not found or not 0 < int(found["port"]) <= LAST_PORT:
        raise OptionError(
            f"expected {name} to be 'HOST:PORT', as '0.0.0.0:8080' or '[::]:8080', or ':PORT' for this host "
            f"alone, with a port from 1 to {LAST_PORT}, got {value!r}"
        )
    return HTTPAddress(found["ipv6"] or found["host"] or LOOPBACK, int(found["port"]))


def payload_store(name: str, value: Any) -> ReadablePayloads:
    """A bucket in S3, and the beginning of keys: their text as it is, without quotes."""
    found = PAYLOAD_URL.fullmatch(text(name, value))
    if not found:
        raise OptionError(
            f"expected {name} to be a URL as 's3://BUCKET' or 's3://BUCKET/PREFIX/', got {value!r}"
        )
    prefix = found["prefix"] or ""
    if (size := len(prefix.encode())) > PREFIX_BYTES:
        raise OptionError(f"expected the prefix in {name} to have at most {PREFIX_BYTES} bytes, got {size}")
    return ReadablePayloads(found["bucket"], prefix)


_names = instance_of((str, list, tuple, Mapping), "a list of names or a mapping of lists")


def message_attributes(name: str, value: Any) -> Any:
    """`fetch_message_attributes`; a mapping has the parameters of ReceiveMessage as keys."""
    if isinstance(value, Mapping):
        check_keys(name, set_keys(value), ("MessageSystemAttributeNames", "MessageAttributeNames"))
    return _names(name, value)
