"""Declarations of options, and their parsers, which return a value or raise an error with a remedy.

An unknown name, or an unknown key in a mapping, is refused with the nearest valid one.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads
from celery_sqs_visibility.policy.queue_names import ATTRIBUTES
from celery_sqs_visibility.policy.retries import DelayRule, parse_delay

T = TypeVar("T")


#: Options of kombu and Celery in the same mapping.
KOMBU_OPTIONS: Final = frozenset(
    {
        "body_encoding",
        "callback",
        "client_properties",
        "confirm_publish",
        "connect_retries_timeout",
        "deadletter_queue",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "on_revive",
        "retry_errors",
    }
)

#: Those that kombu adds to a connection's options when it publishes with a retry policy.
RETRY_POLICY: Final = frozenset({"interval_max", "interval_start", "interval_step", "max_retries"})

#: Minimum similarity of a misspelt name. RedrivePolicy and RedriveAllowPolicy are less similar.
MISSPELT: Final = 0.85

#: The keys of an access key, each with the one that it requires.
ACCESS_KEY_PAIRS: Final = (
    ("access_key_id", "secret_access_key"),
    ("secret_access_key", "access_key_id"),
    ("session_token", "access_key_id"),
)

#: Option names that are not Python names, or not in our style.
_NAMES = {
    "client_config": "client-config",
    "sqs_creation_attributes": "sqs-creation-attributes",
    "queue_owner": "QueueOwnerAWSAccountId",
}


def option_name(field_name: str) -> str:
    """The name that users write for a field of `Options`."""
    return _NAMES.get(field_name, field_name)


def set_keys(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """The keys that are set: kombu ignores `None` and ""."""
    return {key: inner for key, inner in value.items() if inner is not None and inner != ""}


def together(errors: Sequence[OptionError]) -> OptionError:
    """Combine errors into one with the sentences of all, each once."""
    said = [sentence for error in errors for sentence in error.sentences or (str(error),)]
    sentences = tuple(dict.fromkeys(said))
    if len(sentences) == 1:
        return errors[0]
    listed = "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1))
    error = OptionError(f"{len(sentences)} options are wrong: {listed}")
    error.sentences = sentences
    return error


def all_of(steps: Iterable[Callable[[], T]]) -> list[T]:
    """Call the steps and return their results. Raises one `OptionError` for all that fail."""
    done, errors = [], []
    for step in steps:
        try:
            done.append(step())
        except OptionError as error:
            errors.append(error)
    if errors:
        raise together(errors) from None
    return done


def unknown(noun: str, name: object, valid: Collection[str]) -> OptionError:
    """The error about a name that is not valid."""
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid ones are: {', '.join(valid)}"
    return OptionError(f"unknown {noun}: {hint}")


def check_keys(where: str, given: Iterable[Any], valid: Collection[str], noun: str = "key") -> None:
    """Refuse invalid keys. No value is shown: it may be secret."""
    if wrong := [unknown(f"{noun} {key!r} in {where}", key, valid) for key in given if key not in valid]:
        raise together(wrong)


def check_spelling(where: str, given: Iterable[Any], known: Collection[str], noun: str) -> None:
    """Refuse a key that resembles a known one. Others are allowed: AWS may have added them."""
    for key in given:
        if key not in known and difflib.get_close_matches(str(key), known, n=1, cutoff=MISSPELT):
            raise unknown(f"{noun} {key!r} in {where}", key, known)


def check_pairs(where: str, given: Collection[Any], pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse a key without the one that it requires."""
    for key, needed in pairs:
        if key in given and needed not in given:
            raise OptionError(
                f"expected {where} to have {needed!r} beside {key!r}, which means nothing alone"
            )


CALLABLE = "the path of a callable, 'package.module:name'"

#: The format of that path: names, the last one after a colon or a dot.
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")

PROMETHEUS: Final = "prometheus"
OPENTELEMETRY: Final = "opentelemetry"
EMF: Final = "emf"
EXPORTERS: Final = (PROMETHEUS, OPENTELEMETRY, EMF)

MAX_PORT: Final = 65535
ADDRESS: Final = re.compile(
    r"(\[(?P<ipv6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[^]/\s]+)?)\]|(?P<host>[^]:/\s[]*)):(?P<port>[0-9]{1,5})"
)

PAYLOAD_URL: Final = re.compile(r"s3://(?P<bucket>[A-Za-z0-9._-]+)(/(?P<prefix>.*))?", re.DOTALL)

#: S3's longest key has 1024 bytes, and a UUID follows the prefix.
MAX_PREFIX_BYTES: Final = 900

#: Makes an option's value from its name and what the user wrote; raises `OptionError`.
Parser = Callable[[str, Any], Any]


def option(
    default: Any, parse: Parser, doc: str, shown_default: str | None = None, *, internal: bool = False
) -> Any:
    """A field of `Options`.

    Args:
        default: its value if the user gives none.
        parse: parses what the user wrote.
        doc: its meaning, and when to change it.
        shown_default: the default in the reference, if it differs from `repr(default)`.
        internal: whether to leave it out of the reference.
    """
    metadata = {
        "parse": parse,
        "doc": doc,
        "default": repr(default) if shown_default is None else shown_default,
        "bounds": getattr(parse, "bounds", ""),
        "internal": internal,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


class HTTPAddress(NamedTuple):
    """The host, without brackets, and the port at which a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Seconds:
    """A duration within bounds, as a number or, as in the environment, as text."""

    low: float
    high: float
    whole: bool = False  # whether it must be whole; then the value is an `int`
    why: str = ""
    zero: bool = False  # whether 0 is allowed below `low`
    clamp: bool = False  # whether more than `high` means `high`

    @property
    def bounds(self) -> str:
        """The range in the reference, without an exponent."""
        return ("0, or " if self.zero else "") + f"{self.low:.12g} to {self.high:.12g}"

    def __call__(self, name: str, value: Any) -> float:
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
    """A whole number from `low` on, or within bounds, as a number or as text."""

    low: int
    high: float = math.inf
    floats: bool = True  # whether 5.0 is 5
    unit: str = ""

    @property
    def bounds(self) -> str:
        """The range in the reference."""
        return f"{self.low} or more" if self.high == math.inf else f"{self.low} to {self.high}"

    def __call__(self, name: str, value: Any) -> int:
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
        """The words in the reference."""
        return " or ".join(f"`{word!r}`" for word in self.words)

    def __call__(self, name: str, value: Any) -> str:
        if value not in self.words:
            raise OptionError(f"expected {name} to be {' or '.join(map(repr, self.words))}, got {value!r}")
        return str(value)


class ExporterNames:
    """Some of the exporters, as a list, or as text with commas."""

    bounds = ", ".join(f"`{name!r}`" for name in EXPORTERS)

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        names = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(names, list | tuple | set) or not set(names) <= set(EXPORTERS):
            raise OptionError(f"expected {name} to be some of {', '.join(EXPORTERS)}, got {value!r}")
        return tuple(each for each in EXPORTERS if each in names)


def number(name: str, value: Any) -> float:
    """A finite number, as a number or as text; never a bool."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    raise OptionError(f"expected {name} to be a number of seconds, got {value!r}")


def instance_of(expected: type | tuple[type, ...], noun: str) -> Parser:
    """Make a parser that takes values of a type; the error calls it `noun`."""

    def parse(name: str, value: Any) -> Any:
        if not isinstance(value, expected):
            # A value given instead of a mapping may hold secrets.
            got = f"a {type(value).__name__}" if expected is Mapping else repr(value)
            raise OptionError(f"expected {name} to be {noun}, got {got}")
        return value

    return parse


def delay(name: str, value: Any) -> DelayRule | None:
    """An `error_visibility_timeout`: what `parse_delay` takes, numbers as text, or a dotted path."""
    if isinstance(value, str):
        noun = "seconds, a list of seconds or the dotted path of a callable"
        value = number(name, value) if value.strip()[:1].isdigit() else imported(name, value, noun)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
        value = [number(f"{name}[{i}]", item) if isinstance(item, str) else item for i, item in items]
    try:
        return parse_delay(name, value)
    except ValueError as error:
        raise OptionError(str(error)) from None


def imported(name: str, path: str, noun: str) -> Any:
    """Import the object at a dotted path. `noun` says in the error what was expected."""
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
    """Celery's name of a queue: no ARN, no URL."""
    if any(mark in text(name, value) for mark in ":/"):
        raise OptionError(
            f"expected {name} to be the name of a queue, not an ARN or a URL, got {value!r}; "
            "predefined_queues gives URLs names"
        )
    return str(value)


def account(name: str, value: Any) -> str:
    """The number of an AWS account, as text, because it may begin with 0."""
    if isinstance(value, str) and re.fullmatch("[0-9]{12}", value):
        return value
    raise OptionError(f"expected {name} to be the 12 digits of an AWS account, as text, got {value!r}")


def queue_attributes(name: str, value: Any) -> dict[str, str]:
    """Attributes of CreateQueue as SQS takes them: strings, a policy as JSON."""
    check_spelling(name, mapping(name, value), ATTRIBUTES, "attribute")
    return {
        str(key): json.dumps(inner) if isinstance(inner, (bool, dict, list)) else str(inner)
        for key, inner in value.items()
    }


def tags(name: str, value: Any) -> dict[str, str]:
    """Tags of CreateQueue, which are text."""
    return {str(key): str(inner) for key, inner in mapping(name, value).items()}


def dotted_path(name: str, value: Any) -> str:
    """The path of a callable, `package.module:name`. Does not import it."""
    if not PATH.fullmatch(text(name, value)):
        raise OptionError(f"expected {name} to be {CALLABLE}, got {value!r}")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """A bool, as such, as text, or as 0 or 1."""
    flags = {"true": True, "1": True, "false": False, "0": False}
    try:
        return flags[str(value).strip().lower()]
    except KeyError:
        raise OptionError(f"expected {name} to be True or False, got {value!r}") from None


def control_prefix(name: str, value: Any) -> str:
    """The prefix of control queues: only characters that SQS takes."""
    if not re.fullmatch("[A-Za-z0-9_-]+", text(name, value)):
        raise OptionError(f"expected {name} to have letters, digits, hyphens and underscores, got {value!r}")
    return str(value)


def http_address(name: str, value: Any) -> HTTPAddress:
    """The address of a TCP port, on the loopback interface by default."""
    found = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if not found or not 0 < int(found["port"]) <= MAX_PORT:
        raise OptionError(
            f"expected {name} to be 'HOST:PORT', as '0.0.0.0:8080' or '[::]:8080', or ':PORT' for this host "
            f"alone, with a port from 1 to {MAX_PORT}, got {value!r}"
        )
    return HTTPAddress(found["ipv6"] or found["host"] or "127.0.0.1", int(found["port"]))


def payload_store(name: str, value: Any) -> ReadablePayloads:
    """A bucket in S3 and a prefix of keys, which is not unquoted."""
    found = PAYLOAD_URL.fullmatch(text(name, value))
    if not found:
        raise OptionError(
            f"expected {name} to be a URL as 's3://BUCKET' or 's3://BUCKET/PREFIX/', got {value!r}"
        )
    prefix = found["prefix"] or ""
    if (size := len(prefix.encode())) > MAX_PREFIX_BYTES:
        raise OptionError(
            f"expected the prefix in {name} to have at most {MAX_PREFIX_BYTES} bytes, got {size}"
        )
    return ReadablePayloads(found["bucket"], prefix)


_names = instance_of((str, list, tuple, Mapping), "a list of names or a mapping of lists")


def message_attributes(name: str, value: Any) -> Any:
    """`fetch_message_attributes`; a mapping has the parameters of ReceiveMessage as keys."""
    if isinstance(value, Mapping):
        check_keys(name, set_keys(value), ("MessageSystemAttributeNames", "MessageAttributeNames"))
    return _names(name, value)
