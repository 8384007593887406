"""Methods of task classes, wrapped in the class, where Celery's annotations and `unittest.mock` put theirs.

Celery annotates a class when it binds it (celery/app/task.py: `Task.annotate`), and wraps `run` of the
instance for its autoretry: afterwards for decorated functions, before that for registered classes
(celery/app/base.py: `register_task`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from typing import Any, Final

from celery import Task

from celery_sqs_visibility.contacts.app import set_within_autoretry

#: (task, method, args, kwargs), where the method takes these args: calls it.
Caller = Callable[[Any, Callable[..., Any], Any, Any], Any]

#: The attribute of a wrapper that says who calls: a class that is bound again is not wrapped again.
CALLERS: Final = "visibility_callers"


def wrap_method(cls: Any, name: str, call: Caller) -> None:
    """Have `call` call that method of a class, if it is not Celery's own; harmless if it does."""
    raw = getattr_static(cls, name)
    if raw is getattr_static(Task, name):
        return
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    callers = getattr(function, CALLERS, ())
    if _of(call) in callers or not callable(function):
        return
    wrapper: Any = _static(cls, function, call) if isinstance(raw, staticmethod) else _method(function, call)
    setattr(wrapper, CALLERS, (*callers, _of(call)))
    setattr(cls, name, staticmethod(wrapper) if isinstance(raw, staticmethod) else wrapper)
    made = vars(cls).get("_instance")
    if name == "run" and made is not None:
        set_within_autoretry(made, getattr_static(cls, name).__get__(made, cls))


def _static(cls: Any, function: Callable[..., Any], call: Caller) -> Callable[..., Any]:
    @wraps(function, updated=())
    def static(*args: Any, **kwargs: Any) -> Any:
        return call(cls._instance, function, args, kwargs)

    return static


def _method(function: Callable[..., Any], call: Caller) -> Callable[..., Any]:
    @wraps(function, updated=())
    def method(task: Any, *args: Any, **kwargs: Any) -> Any:
        return call(task, function, (task, *args), kwargs)

    return method


def _of(call: Caller) -> Any:
    return getattr(call, "func", call)
