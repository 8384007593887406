"""Task base class: a failed run hides its message, instead of publishing another.

The pool's child makes the decision, because not every exception can be pickled. `run` and `before_start` of
the class are wrapped, inside Celery's autoretry, which wraps `run` of the task (celery/app/autoretry.py). The
wrappers turn a failure that is retried into a `VisibilityRetry`: Celery's tracer records it as RETRY, and the
worker's main process hides the message.

Methods are wrapped in the class, where Celery's annotations and `unittest.mock` put theirs. Celery annotates
a class when it binds it (celery/app/task.py: `Task.annotate`). For its autoretry it wraps `run` of the
instance: afterwards for decorated functions, before for registered classes (celery/app/base.py:
`register_task`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial, wraps
from importlib import import_module
from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from celery import Task
from celery.exceptions import ImproperlyConfigured, Retry

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.contacts.app import set_within_autoretry
from celery_sqs_visibility.option_secrets import mask_settings
from celery_sqs_visibility.task.context import delivered_request, is_delivery
from celery_sqs_visibility.task.retries import P, R_co, RetryDecisions, keep_celerys_own
from celery_sqs_visibility.task.settings import check_settings

if TYPE_CHECKING:
    from typing import Self  # in `typing` from Python 3.11 on

    from celery_sqs_visibility.visibility import Visibility


#: Calls a method: (task, method, args, kwargs).
Caller = Callable[[Any, Callable[..., Any], Any, Any], Any]

#: The attribute of a wrapper that lists its callers, so that a class that is bound again is not wrapped
#: again.
CALLERS: Final = "visibility_callers"

logger = logging.getLogger(__name__)

mask_settings()


class VisibilityTask(RetryDecisions[P, R_co]):
    """`base=VisibilityTask`, or `Celery(task_cls=VisibilityTask)` for all tasks of an app.

    On any other broker, and called directly or eagerly, it is an ordinary Celery task.

    Attributes:
        error_visibility_timeout: how long the message of a failed run stays hidden: seconds, a list by
            attempt (the last repeats), or `callable(retries, exc)`, which may be a method. `None` leaves it
            to `retry_backoff`, `default_retry_delay` and the transport option of this name.
        autoretry_for: the exceptions that are retried; all by default. Time limits and lost pool children
            are always retried, unless `dont_autoretry_for` names them.
        when_exhausted: "delete" or "keep": what happens to a message after its last attempt if there is no
            dead-letter queue. `None` uses the transport option of this name.
        max_retries: as in Celery. `None` leaves the limit to the queue's redrive policy.
        sqs_event: the AWS events, or patterns of them, that run the task: "s3:ObjectCreated:*",
            "aws.s3/Object Created", "sns:topic", or a list of these. Its only argument is the event.
        sqs_event_per: "record" or "message": a run for each record of a message, or one for all.
        when_lost: "continue" or "terminate": what happens to a run whose message another worker may have.
            `None` uses the transport option of this name.
        inactivity_timeout: seconds without `self.visibility.alive()` or `track()` after which a run is ended
            as failed. `None`: no limit.
        exclusive: True, or a `callable(args, kwargs)` that returns a key: only one run of a task id, or of a
            key, at a time, and none after one has succeeded. Needs the transport option `coordination_store`.
        exclusive_ttl: how many seconds a success counts. `None`: 14 days, SQS's longest retention.
        brake_on: the exceptions of something that the task depends on. While most runs end with one of them,
            the worker lets the task's messages wait, and tries one at a time.
        brake: the name of that dependency, for tasks that share it; by default the task's own name.
    """

    abstract = True
    acks_late = True
    Request = "celery_sqs_visibility.worker.visibility_request:VisibilityRequest"
    when_exhausted: ClassVar[Literal["delete", "keep"] | None] = None
    when_lost: ClassVar[Literal["continue", "terminate"] | None] = None
    inactivity_timeout: ClassVar[float | None] = None
    sqs_event: ClassVar[str | Sequence[str] | None] = None
    sqs_event_per: ClassVar[Literal["record", "message"]] = "record"
    exclusive: ClassVar[bool | Callable[[Any, Any], str | int]] = False
    exclusive_ttl: ClassVar[float | None] = None
    brake: ClassVar[str | None] = None
    _instance: ClassVar[Any] = None
    #: Whether the warning about an unpublished successor may be logged: see `outcomes.require_successor`.
    may_say_unpublished = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 - a task class may take some
        """Keep the instance, for a `run` without `self`."""
        cls._instance = made = super().__new__(cls)
        return made

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Check the settings and wrap the methods that may fail, when the task gets its app.

        Celery has annotated the class by then (celery/app/task.py: `Task.bind`).

        Raises:
            ImproperlyConfigured: names the task, the attribute, the value and the remedy.
        """
        bound = super().bind(app)
        keep_celerys_own(cls)
        try:
            cls._check_settings()
        except ValueError as error:
            raise shown_in_one_line(ImproperlyConfigured(f"task {cls.name!r}: {error}")) from None
        # This package decides which failure is the last; then Celery sees a plain failure.
        task: Any = cls
        task.acks_on_failure_or_timeout = task.acks_on_failure = task.acks_on_timeout = True
        task.reject_on_worker_lost = task.retry_on_worker_lost = False
        cls._wrap_methods()
        return bound

    @classmethod
    def _wrap_methods(cls) -> None:
        """Wrap the class's own methods once, including annotated and inherited ones."""
        if "given_retry_kwargs" not in vars(cls):
            cls.given_retry_kwargs = dict(getattr(cls, "retry_kwargs", None) or {})
        if cls.exclusive:
            wrap_method(cls, "run", exclusive_tasks().refuse_without_key)
        wrap_method(cls, "run", call_own_code)
        wrap_method(cls, "__call__", call_own_code)
        wrap_method(cls, "before_start", partial(call_own_code, ends=False))
        for handler in ("on_failure", "on_retry", "after_return"):
            wrap_method(cls, handler, partial(log_errors, name=handler))

    @classmethod
    def _check_settings(cls) -> None:
        check_settings(cls, VisibilityTask)
        cls._delay_rule()
        if inspect.getattr_static(cls, "exclusive") is not False:
            exclusive_tasks().key_rule(cls)

    @property
    def __trace__(self) -> Callable[..., Any] | None:
        """The tracer of the task's runs, set by Celery (celery/app/trace.py: `build_tracer`)."""
        return self.__dict__.get("_tracer")

    @__trace__.setter
    def __trace__(self, tracer: Callable[..., Any] | None) -> None:
        if tracer is not None:
            from celery_sqs_visibility.task.tracing import trace_deliveries  # noqa: PLC0415 - only runs need it

            tracer = trace_deliveries(self, tracer)
            if self.exclusive:
                tracer = exclusive_tasks().trace_exclusively(self, tracer)
        self.__dict__["_tracer"] = tracer

    @property
    def visibility(self) -> Visibility:
        """The running message's lease, for the task's own code."""
        from celery_sqs_visibility.visibility import Visibility  # noqa: PLC0415 - only runs need it

        return Visibility(self.request, self)

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `delay` when Django's transaction commits; at once without a transaction."""
        _on_commit(partial(self.delay, *args, **kwargs))

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call `apply_async` when Django's transaction commits, as `delay_on_commit`."""
        _on_commit(partial(self.apply_async, *args, **kwargs))

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,  # noqa: FBT001, FBT002
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Try again later, with the same message if possible, otherwise as Celery does.

        Other arguments, another queue, other options, `throw=False`, or a delay beyond SQS's 12 hours need
        a new message.

        If the message is lost, no new one is sent: another worker runs the task.

        Raises:
            Retry: do not catch it.
            Reject: the message is lost. Do not catch it either.
            MaxRetriesExceededError: or `exc`, if this was the last attempt.
        """
        if not is_delivery(self):
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        changes = {"args": args, "kwargs": kwargs, "throw": throw, "max_retries": max_retries, **options}
        retry: Retry = outcomes().retry(self, exc, countdown, eta, changes)
        return retry

    def retry_as_celery(self, **options: Any) -> Retry:
        """Retry with a new message, as Celery does."""
        return super().retry(**options)

    def replace(self, sig: Any) -> Any:
        """Celery's `replace`, which also frees the key of an exclusive task for its replacement."""
        return outcomes().replace(self, super().replace, sig)

    def publish_continuation(self, changes: dict[str, Any]) -> Retry:
        """Publish the task again, with changed arguments, for `self.visibility.continue_later`."""
        retry: Retry = outcomes().publish_continuation(self, changes)
        return retry


def outcomes() -> ModuleType:
    """The module that decides how runs end, imported only where tasks run."""
    return import_module("celery_sqs_visibility.task.outcomes")


def exclusive_tasks() -> ModuleType:
    """The module of exclusive tasks, imported only for those."""
    return import_module("celery_sqs_visibility.task.exclusive")


def call_own_code(
    task: Any, function: Callable[..., Any], args: Any, kwargs: Any, *, ends: bool = True
) -> Any:
    """Call a part of the task's own code. In a run, `tracing` decides about its exceptions.

    Only the outermost call is treated so: the task's code may call `self.run()` and handle its errors. With
    `ends`, the task's own code is over when the part returns.
    """
    request = delivered_request(task)
    if request is None or request.visibility_in_run:
        return function(*args, **kwargs)
    from celery_sqs_visibility.task.tracing import decide_failures  # noqa: PLC0415 - only runs need it

    return decide_failures(task, request, function, args, kwargs, ends=ends)


def log_errors(task: Any, handler: Callable[..., Any], args: Any, kwargs: Any, *, name: str) -> Any:
    """Call a user's handler after the outcome was stored. Its error changes nothing."""
    try:
        return handler(*args, **kwargs)
    except Exception:
        if not is_delivery(task):
            raise
        logger.exception("%s of task %s failed; the outcome stays as stored", name, task.name)


def _on_commit(publish: Callable[[], object]) -> None:
    """Publish on commit, which Celery's Django fixup does only for tasks of its own class."""
    from django.db import transaction  # noqa: PLC0415 - an app without Django never comes here

    transaction.on_commit(publish)


def wrap_method(cls: Any, name: str, call: Caller) -> None:
    """Wrap a method of a class in `call`, unless it is Celery's own. Idempotent."""
    raw = getattr_static(cls, name)
    if raw is getattr_static(Task, name):
        return
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    callers = getattr(function, CALLERS, ())
    caller = getattr(call, "func", call)  # `call` may be a `partial`
    if caller in callers or not callable(function):
        return
    wrapper: Any = _static(cls, function, call) if isinstance(raw, staticmethod) else _method(function, call)
    setattr(wrapper, CALLERS, (*callers, caller))
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
