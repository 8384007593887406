"""Validation of messages: each part of a Celery task that Celery, its pools or this package rely on.

Celery finds out late: a time limit that is text costs the pool a slot, a header of the wrong type raises in
the event loop, an invalid callback makes a task run again that had succeeded. So messages are checked before
Celery gets them (protocols 1 and 2: celery/worker/strategy.py, celery/worker/request.py, celery/app/trace.py,
celery/app/task.py: `Context`). Celery deletes a message that is not a valid task; here it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from itertools import repeat
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from celery import signals
from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.utils.time import maybe_iso8601
from kombu.exceptions import ContentDisallowed, SerializerNotInstalled

from celery_sqs_visibility.contacts.worker import replace_refusals, wrap_message_handler
from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.message_limits import CONTROL_CHARACTERS
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.task.context import LIMIT_HEADER, DeliveryContext
from celery_sqs_visibility.transport.content_bounds import knows_compression
from celery_sqs_visibility.transport.message import Message

#: More retries than any task makes; backoffs are computed from them.
MAX_RETRIES: Final = 1_000_000

#: Some thirty years: timers refuse infinity.
MAX_LIMIT_SECONDS: Final = 1e9

#: Arguments, keyword arguments and `embed`; below, the keys that `embed` may have.
PARTS: Final[list[type]] = [list, dict, dict]

EMBEDDED: Final = ("callbacks", "errbacks", "chain", "chord")

NOTHING_EMBEDDED: Final = dict.fromkeys(EMBEDDED)

#: Headers become attributes of a task's request: these would hide its methods or private attributes.
HIDING: Final = frozenset(
    name
    for name in dir(Context)
    if callable(getattr(Context, name)) or (name.startswith("_") and not name.startswith("__"))
)

NOT_REGISTERED: Final = (
    "is not registered here: import its module in this worker (the settings include and imports, or "
    "autodiscover_tasks()), or route it to a queue whose workers have it"
)

#: Characters of a wrong value that a reason quotes.
MAX_QUOTED_CHARACTERS: Final = 60

#: Attributes of a task's request that only we may set; below, all that a message's body must not set.
OURS: Final = tuple(DeliveryContext.__annotations__.keys() - {LIMIT_HEADER})

RESERVED: Final = frozenset({*dir(Context), *OURS})

#: Properties of a message that are checked, too; the second is Celery's copy of the id.
PROPERTIES: Final = ("reply_to", "correlation_id")

#: The headers of every task that Celery sends, by the type of their values. EMPTY has the values of most
#: tasks.
TEXTS: Final = ("task", "id", "root_id", "parent_id", "group", "shadow")

NUMBERS: Final = ("retries", "group_index", "replaced_task_nesting")

EMPTY: Final[dict[str, Any]] = {
    "eta": None,
    "expires": None,
    "timelimit": [None, None],
    "stamped_headers": None,
    "stamps": {},
}

_TEXTS: Final = itemgetter(*TEXTS)

_NUMBERS: Final = itemgetter(*NUMBERS)

_EMPTY: Final = itemgetter(*EMPTY)

_AS_EMPTY: Final = tuple(EMPTY.values())

_TYPES_OF_TEXT: Final = frozenset({str, type(None)})

_TYPES_OF_NUMBER: Final = frozenset({int, type(None)})

_SMALL: Final = frozenset({None, *range(1000)})


class BadMessages:
    """Validates messages before Celery gets them, and refuses invalid ones in its place. Main thread."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        replace_refusals(consumer, self)
        wrap_message_handler(consumer, self.validating)

    def on_unknown_message(self, body: Any, message: Message) -> None:  # noqa: ARG002 - Celery's signature
        """Refuse a message that names no task."""
        message.refuse("its headers name no task")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=None)

    def on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        """Refuse a message whose task is not registered here.

        No FAILURE is stored, because other workers may know the task in a rolling deploy.
        """
        headers = message.headers
        if "task" not in headers and isinstance(message.payload, dict):
            headers = message.payload  # protocol 1
        name = headers.get("task")
        message.refuse(f"task {name!r} {NOT_REGISTERED}", others_may=True)
        signals.task_unknown.send(
            sender=self._consumer, message=message, exc=exc, name=name, id=headers.get("id")
        )

    def on_invalid_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        """Refuse a message with a part that Celery or its pools cannot use."""
        message.refuse(f"its task is invalid: {exc}")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=exc)

    def on_decode_error(self, message: Message, exc: Exception) -> None:
        """Refuse a message whose body can't be decoded here. Another worker may have the codec."""
        if passes(exc):
            message.come_back(exc)
            return
        known = knows_compression(message.headers.get("compression"))
        missing = isinstance(exc, SerializerNotInstalled) or not known
        said = str(exc) if isinstance(exc, TooLargeError) else f"its content cannot be decoded: {exc!r}"
        message.refuse(said, others_may=missing)

    def validating(self, handle: Callable[[Message], object]) -> Callable[[Message], None]:
        """Wrap a message handler so that only valid messages reach it."""
        consumer = self._consumer

        def handle_if_valid(message: Message) -> None:
            try:
                validate(message, consumer.strategies)
            except (InvalidTaskError, ContentDisallowed) as exc:
                self.on_invalid_task(None, message, exc)
            except Exception as exc:  # noqa: BLE001 - decoders may raise anything
                self.on_decode_error(message, exc)
            else:
                handle(message)

        return handle_if_valid


def validate(message: Any, tasks: Mapping[str, Any]) -> None:
    """Check a message before Celery gets it. Celery handles messages without a task, or with an unknown one.

    Raises:
        InvalidTaskError: the text says what is wrong.
        ContentDisallowed: the worker does not accept its content type.
        Exception: its body can't be decoded.
    """
    headers = message.headers
    if not _are_plain(headers, message.properties):
        _check_closely(message, tasks)
    in_headers = "task" in headers
    if in_headers and headers["task"] not in tasks:
        return
    body = message.payload
    if type(body) is list and [*map(type, body)] == PARTS and body[2] == NOTHING_EMBEDDED:
        kwargs = body[1]
        if not kwargs or all(map(isinstance, kwargs, repeat(str))):
            return  # the usual case
    if isinstance(body, dict) and ("args" in body if in_headers else "task" in body):
        _check_headers({**body, **headers} if in_headers else body)  # protocol 1
        _check_arguments(body.get("args", ()), body.get("kwargs", {}))
    elif in_headers:
        _check_body(body)


def _are_plain(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Returns whether they are as Celery sends most tasks, so that nothing needs a closer check."""
    try:
        texts = {*_TEXTS(headers), *map(properties.get, PROPERTIES)}
        numbers = _NUMBERS(headers)
        return (
            _EMPTY(headers) == _AS_EMPTY
            and _TYPES_OF_TEXT.issuperset(map(type, texts))
            and _TYPES_OF_NUMBER.issuperset(map(type, numbers))
            and _SMALL.issuperset(numbers)
            and "".join(filter(None, texts)).isprintable()
            and bool(headers["task"] and headers["id"])
            and NOT_PLAIN.isdisjoint(headers)
        )
    except (KeyError, TypeError):  # a list instead of a text
        return False


def _check_closely(message: Any, tasks: Mapping[str, Any]) -> None:
    headers = message.headers
    for name in OURS:
        headers.pop(name, None)
    if "task" in headers:
        _check_headers(headers)
        if headers["task"] not in tasks:
            return
    for name in PROPERTIES:
        _check(name, message.properties.get(name))


def _check_headers(headers: Mapping[str, Any]) -> None:
    for name in ("task", "id"):
        if headers.get(name) is None or headers[name] == "":
            raise InvalidTaskError(f"{name!r} is missing")
    for name, value in headers.items():
        if value is not None and name in CHECKS:  # most are absent or null
            _check(name, value)
    if hidden := HIDING & headers.keys():
        raise InvalidTaskError(f"{min(hidden)!r} cannot be a header: it is a method of a task's request")


def _check_body(body: Any) -> None:
    if not isinstance(body, (list, tuple)) or len(body) != len(PARTS):
        raise InvalidTaskError(f"its body should be [args, kwargs, embed], and is {_shown(body)}")
    args, kwargs, embedded = body
    _check_arguments(args, kwargs)
    if embedded is None:
        return
    if not isinstance(embedded, dict):
        raise InvalidTaskError(f"'embed' should be an object, and is {_shown(embedded)}")
    for name, value in embedded.items():
        if name in EMBEDDED:
            _check(name, value)
        elif not isinstance(name, str) or name in RESERVED or name in CHECKS:
            raise InvalidTaskError(f"{_shown(name)} cannot be embedded in its body")


def _check_arguments(args: Any, kwargs: Any) -> None:
    if not isinstance(args, (list, tuple)):
        raise InvalidTaskError(f"'args' should be a list, and is {_shown(args)}")
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise InvalidTaskError(f"'kwargs' should be an object with names, and is {_shown(kwargs)}")


def _check(name: str, value: Any) -> None:
    is_right, should_be = CHECKS[name]
    if value is not None and not is_right(value):
        raise InvalidTaskError(f"{name!r} should be {should_be}, and is {_shown(value)}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and not CONTROL_CHARACTERS.search(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_RETRIES


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    return type(value) in (int, float) and 0 <= value <= MAX_LIMIT_SECONDS and isfinite(value)


def _is_instant(value: Any) -> bool:
    """An ISO 8601 time, far enough from the ends of the calendar for any time zone."""
    if not isinstance(value, (str, datetime)) or not value:
        return False
    try:
        instant = maybe_iso8601(value)
    except Exception as error:
        if passes(error):
            raise
        return False  # its parser raises many kinds
    return instant is not None and MINYEAR < instant.year < MAXYEAR


def _is_signature(value: Any) -> bool:
    if isinstance(value, str):
        return _is_name(value)
    return (
        isinstance(value, dict)
        and _is_name(value.get("task"))
        and isinstance(value.get("args") or [], (list, tuple))
        and all(isinstance(value.get(part) or {}, dict) for part in ("kwargs", "options"))
    )


def _list_of(is_right: Callable[[Any], bool], lengths: tuple[int, ...] = ()) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, (list, tuple))
        and (not lengths or len(value) in lengths)
        and all(map(is_right, value))
    )


def _shown(value: Any) -> str:
    """A wrong value as a reason shows it: the value if it is short, otherwise its type."""
    if isinstance(value, str) and len(value) <= MAX_QUOTED_CHARACTERS:
        return repr(value)
    if isinstance(value, (bool, int, float)) and abs(value) <= MAX_LIMIT_SECONDS:
        return repr(value)
    return f"of type {type(value).__name__}"


def _checked(names: str, is_right: Callable[[Any], bool], should_be: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), (is_right, should_be))


#: A predicate for a value, and a description of what the value should be.
Check = tuple[Callable[[Any], bool], str]

#: The parts of a message that are checked. `None` and absence are valid. Other parts do no harm.
CHECKS: Final[dict[str, Check]] = {
    **_checked(
        "task id root_id parent_id group taskset shadow reply_to correlation_id",
        _is_name,
        "text without control characters",
    ),
    **_checked(
        f"retries group_index replaced_task_nesting {LIMIT_HEADER}",
        _is_count,
        f"a number from 0 to {MAX_RETRIES}",
    ),
    **_checked("eta expires", _is_instant, "a time as in ISO 8601"),
    **_checked("timelimit", _list_of(_is_limit, (0, 2)), "a list of two numbers of seconds, or null"),
    **_checked("stamped_headers", _list_of(_is_name), "a list of names"),
    **_checked("stamps headers", lambda value: isinstance(value, dict), "an object"),
    **_checked("callbacks errbacks chain", _list_of(_is_signature), "a list of signatures"),
    **_checked("chord", _is_signature, "a signature"),
}

#: Names of headers that need a closer check.
NOT_PLAIN: Final = (HIDING | CHECKS.keys() | set(OURS)) - {*TEXTS, *NUMBERS, *EMPTY}
