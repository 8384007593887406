"""Checks of a task's settings, and of where they have no effect: on plain Celery tasks, on another broker.

Celery turns any option of a task into an attribute, even a misspelt one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from inspect import getattr_static, isfunction, signature
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, current_app, signals
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.event_routes import parse_sqs_event, sqs_event_per
from celery_sqs_visibility.policy.exclusive import parse_exclusive_ttl
from celery_sqs_visibility.policy.option_parsers import Seconds, set_keys, when_exhausted, when_lost
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.task.retries import RetryDecisions

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

logger = get_logger(__name__)

#: The attributes that `VisibilityTask` adds to a task.
SETTINGS: Final = (
    "error_visibility_timeout",
    "when_exhausted",
    "when_lost",
    "inactivity_timeout",
    "exclusive",
    "exclusive_ttl",
    "sqs_event",
    "sqs_event_per",
    "brake_on",
    "brake",
)

#: Those that are also transport options.
TRANSPORT_OPTIONS: Final = ("when_exhausted", "when_lost")

#: The values of settings that are one of a few words.
WORDS: Final = {
    "when_exhausted": when_exhausted.words,
    "when_lost": when_lost.words,
    "sqs_event_per": sqs_event_per.words,
}

#: Minimum similarity of a misspelt name: one letter of seven may differ.
SIMILARITY: Final = 0.9

ANOTHER_BROKER: Final = (
    "the task %r has the base VisibilityTask, and this worker's broker transport is %r, where it is a plain "
    "Celery task without error_visibility_timeout and heartbeat; for these set "
    "broker_transport = 'celery_sqs_visibility'"
)


def check_settings(cls: type[Any], known: type[Any]) -> None:
    """Check the settings of a task class that are plain values; `known` is `VisibilityTask`.

    Raises:
        ValueError: names the attribute, the value and the remedy.
    """
    if not cls.acks_late:
        raise ValueError(
            f"it has acks_late={cls.acks_late!r}, but a message deleted before its run cannot come back "
            "after it; remove acks_late or use another base"
        )
    _refuse_misspelt(cls, known)
    if cls.inactivity_timeout is not None:
        parse = Seconds(1, VISIBILITY_HORIZON_SECONDS)
        cls.inactivity_timeout = parse("inactivity_timeout", cls.inactivity_timeout)
    Options.parse(set_keys({name: getattr(cls, name) for name in TRANSPORT_OPTIONS}))
    if cls.exclusive_ttl is not None:
        parse_exclusive_ttl("exclusive_ttl", cls.exclusive_ttl)
    parse_brake(cls)
    parse_sqs_event("sqs_event", cls.sqs_event)
    sqs_event_per("sqs_event_per", cls.sqs_event_per)


def parse_brake(cls: type[Any]) -> None:
    """Turn `brake_on` of a task class into a tuple. Raises `ValueError` if it is invalid."""
    given = cls.brake_on
    classes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise ValueError(
            f"expected brake_on to be exception classes, such as (ConnectionError,), got {given!r}"
        )
    cls.brake_on = classes
    if cls.brake is not None and not (isinstance(cls.brake, str) and cls.brake and classes):
        raise ValueError(f"expected brake to be a name, and brake_on beside it, got {cls.brake!r}")


def _refuse_misspelt(cls: type[Any], known: type[Any]) -> None:
    """Raise `ValueError` if a task class has an attribute whose name resembles a setting."""
    own = {name for each in cls.__mro__ if each not in known.__mro__ for name in vars(each)}
    # `dir()`, because reading `Task.app` would bind the class.
    for name in sorted(name for name in own.difference(dir(known)) if not name.startswith("_")):
        near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=SIMILARITY)
        value = getattr_static(cls, name)
        users_own = callable(value) or isinstance(value, property)
        if near and (near == [SETTINGS[0]] or not users_own):
            raise ValueError(f"there is no setting {name!r}: did you mean {near[0]!r}?")


def _is_setting(name: str, value: Any) -> bool:
    """Returns whether the value is our setting: other packages may have attributes of that name."""
    if name == "exclusive":
        # A callable of (args, kwargs); a method of the user's has `self`.
        return value is True or (isfunction(value) and len(signature(value).parameters) == 2)  # noqa: PLR2004
    words = WORDS.get(name)
    if words is None:
        return value is not None and not isinstance(value, property)
    return isinstance(value, str) and value in words


def refuse_on_other_tasks(tasks: Iterable[Any]) -> None:
    """Raise `ImproperlyConfigured` if a task that is not a `VisibilityTask` has one of its settings."""
    for task in tasks:
        if isinstance(task, RetryDecisions):
            continue
        for name in SETTINGS:
            value = getattr_static(task.__class__, name, None)
            if _is_setting(name, value):
                sentence = (
                    f"task {task.name!r} has {name}={value!r} and is no VisibilityTask, so that it would be "
                    "ignored: give the task base=VisibilityTask, or the app task_cls=VisibilityTask"
                )
                raise shown_in_one_line(ImproperlyConfigured(sentence))


@signals.worker_ready.connect(weak=False)
def warn_of_another_broker(sender: Any, **_: Any) -> None:
    """Warn if a worker has tasks of ours on another broker. Main thread."""
    app = sender.app
    ours = sorted(name for name, task in app.tasks.items() if isinstance(task, RetryDecisions))
    names = [name for name in ours if not name.startswith("celery.")]
    if not names:
        return
    from celery_sqs_visibility.transport.transport import Transport  # noqa: PLC0415 - a producer needs none

    with app.connection_for_read() as connection:
        if not isinstance(connection.transport, Transport):
            logger.warning(ANOTHER_BROKER, names[0], connection.transport.driver_name)


ERROR_ID: Final = "celery_sqs_visibility.E001"


def check_current_app() -> list[CheckMessage]:
    """The errors in the current app's options, and in the settings of its imported tasks."""
    return check_app(current_app)


def check_app(app: Celery) -> list[CheckMessage]:
    """The errors in an app's options and its tasks' settings; empty on another broker. Makes no request."""
    from django.core.checks import Error  # noqa: PLC0415 - an app without Django never comes here

    with app.connection_for_write() as connection:
        if not str(connection.transport_cls).replace("-", "_").startswith("celery_sqs_visibility"):
            return []
    found: list[CheckMessage] = []
    try:
        Options.parse(app.conf.broker_transport_options)
    except OptionError as error:
        found += [Error(sentence, id=ERROR_ID) for sentence in error.sentences or (str(error),)]
    try:
        app.finalize(auto=True)  # each task gets its app, and is checked
    except ImproperlyConfigured as error:
        found.append(Error(str(error), id=ERROR_ID))
    return found
