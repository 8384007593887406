"""Whether a message is a Celery task in every part that Celery, its pools or we will rely on.

Celery finds out late, and badly: a time limit that is text costs the pool a slot, a header of the wrong type
an exception in the event loop, a callback that is none a second run of a task that had succeeded. So all of
it is looked at before Celery is given the message (protocols 1 and 2: celery/worker/strategy.py,
celery/worker/request.py, celery/app/trace.py, celery/app/task.py: `Context`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from math import isfinite
from typing import Any

from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.utils.time import maybe_iso8601

from celery_sqs_visibility.task.tracing import LIMIT_HEADER

#: What a name or id cannot hold: control characters, and halves of characters that no encoding takes.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

#: More retries than anybody makes; a backoff is computed of them.
MOST_RETRIES = 1_000_000

#: Seconds, some thirty years: no timer takes infinity.
LONGEST_LIMIT = 1e9

#: What the body of a protocol 2 message may tell beyond arguments.
EMBEDDED = ("callbacks", "errbacks", "chain", "chord")

#: Headers become attributes of a task's request: those that would hide its methods.
HIDING = frozenset(
    {name for name in dir(Context) if callable(getattr(Context, name))} | {"_children", "_protected"}
)

#: Characters of a wrong value that a reason quotes.
SHORT = 60

#: Arguments, keyword arguments, and what is embedded.
PROTOCOL_2_PARTS = 3

#: What only headers, Celery or we may say of a task's request.
OURS = ("sqs", "visibility_lease", "visibility_final", "visibility_in_run")
TAKEN = frozenset({*dir(Context), *OURS})


def vet(message: Any, tasks: Mapping[str, Any]) -> None:
    """Check a message before Celery is given it; what names no task, or none of `tasks`, is left to Celery.

    Raises:
        InvalidTaskError: the text says what is wrong.
        ContentDisallowed: the worker does not accept its content type.
        Exception: its body cannot be decoded.
    """
    headers = message.headers
    for name in OURS:
        headers.pop(name, None)
    for name in ("reply_to", "correlation_id"):
        _check(name, message.properties.get(name))
    in_headers = "task" in headers
    if in_headers:
        vet_headers(headers)
        if headers["task"] not in tasks:
            return
    body = message.payload
    if isinstance(body, dict) and ("args" in body if in_headers else "task" in body):
        vet_headers({**body, **headers} if in_headers else body)
        vet_arguments(body.get("args", ()), body.get("kwargs", {}))
    elif in_headers:
        vet_body(body)


def vet_headers(headers: Mapping[str, Any]) -> None:
    """Check what a message says about its task: its headers, or in protocol 1 its body.

    Raises:
        InvalidTaskError: the text says what is wrong.
    """
    for name in ("task", "id"):
        if headers.get(name) is None or headers[name] == "":
            raise InvalidTaskError(f"{name!r} is missing")
    for name, value in headers.items():
        if value is not None and name in CHECKS:  # most are absent, or null
            _check(name, value)
    if hidden := HIDING & headers.keys():
        raise InvalidTaskError(f"{min(hidden)!r} cannot be a header: it is a method of a task's request")


def vet_body(body: Any) -> None:
    """Check the decoded body of a protocol 2 message.

    Raises:
        InvalidTaskError: the text says what is wrong.
    """
    if not isinstance(body, (list, tuple)) or len(body) != PROTOCOL_2_PARTS:
        raise InvalidTaskError(f"its body should be [args, kwargs, embed], and is {_shown(body)}")
    args, kwargs, embedded = body
    vet_arguments(args, kwargs)
    if embedded is None:
        return
    if not isinstance(embedded, dict):
        raise InvalidTaskError(f"'embed' should be an object, and is {_shown(embedded)}")
    for name, value in embedded.items():
        if name not in EMBEDDED and (not isinstance(name, str) or name in TAKEN or name in CHECKS):
            raise InvalidTaskError(f"{_shown(name)} cannot be embedded in its body")
        if name in EMBEDDED:
            _check(name, value)


def vet_arguments(args: Any, kwargs: Any) -> None:
    """Check a task's arguments.

    Raises:
        InvalidTaskError: they cannot be passed to a function.
    """
    if not isinstance(args, (list, tuple)):
        raise InvalidTaskError(f"'args' should be a list, and is {_shown(args)}")
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise InvalidTaskError(f"'kwargs' should be an object with names, and is {_shown(kwargs)}")


def _check(name: str, value: Any) -> None:
    is_right, should_be = CHECKS[name]
    if value is not None and not is_right(value):
        raise InvalidTaskError(f"{name!r} should be {should_be}, and is {_shown(value)}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and not UNPRINTABLE.search(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_RETRIES


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    return type(value) in (int, float) and 0 <= value <= LONGEST_LIMIT and isfinite(value)


def _are_limits(value: Any) -> bool:
    hard_and_soft = isinstance(value, (list, tuple)) and len(value) in (0, 2)
    return hard_and_soft and all(map(_is_limit, value))


def _is_instant(value: Any) -> bool:
    """An ISO 8601 time, far enough from the ends of the calendar for any time zone."""
    if not isinstance(value, (str, datetime)) or not value:
        return False
    try:
        instant = maybe_iso8601(value)
    except Exception:  # noqa: BLE001 - whatever it is that its parser cannot bear
        return False
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


def _are_signatures(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_signature, value))


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_name, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _shown(value: Any) -> str:
    """A wrong value as a reason may tell it: its type and, where it is short, itself."""
    if isinstance(value, str) and len(value) <= SHORT:
        return repr(value)
    if isinstance(value, (bool, int, float)) and abs(value) <= LONGEST_LIMIT:
        return repr(value)
    return f"of type {type(value).__name__}"


Check = tuple[Callable[[Any], bool], str]

NAME: Check = (_is_name, "text")
COUNT: Check = (_is_count, f"a number from 0 to {MOST_RETRIES}")
INSTANT: Check = (_is_instant, "a time as in ISO 8601")
SIGNATURES: Check = (_are_signatures, "a list of signatures")
OBJECT: Check = (_is_object, "an object")

#: What is checked of a message, `None` and absence being right. What is not here does no harm, of any type.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("task", "id", "root_id", "parent_id", "group", "taskset", "shadow"), NAME),
    **dict.fromkeys(("reply_to", "correlation_id"), NAME),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting", LIMIT_HEADER), COUNT),
    **dict.fromkeys(("eta", "expires"), INSTANT),
    "timelimit": (_are_limits, "a list of two numbers of seconds, or null"),
    "stamped_headers": (_are_names, "a list of names"),
    "stamps": OBJECT,
    "headers": OBJECT,
    **dict.fromkeys(("callbacks", "errbacks", "chain"), SIGNATURES),
    "chord": (_is_signature, "a signature"),
}
