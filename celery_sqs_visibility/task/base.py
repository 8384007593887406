"""Task base class: a failed run hides its message, instead of publishing another.

The pool's child decides, since not every exception can be pickled: `run` and `before_start` of the class are
wrapped, within Celery's autoretry, which wraps `run` of the task (celery/app/autoretry.py). They turn
a failure that comes back into a `VisibilityRetry`: Celery's tracer records it as RETRY, and the worker's main
process hides the message.

Methods are wrapped in the class, where Celery's annotations and `unittest.mock` put theirs. Celery annotates
a class when it binds it (celery/app/task.py: `Task.annotate`). It wraps `run` of the instance for its
autoretry: afterwards for decorated functions, before for registered classes (celery/app/base.py:
`register_task`).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial, wraps
from importlib import import_module
from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn

from celery import Task
from celery.exceptions import (
    Ignore,
    ImproperlyConfigured,
    MaxRetriesExceededError,
    QueueNotFound,
    Reject,
    Retry,
)
from celery.utils.time import maybe_make_aware

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.contacts.app import forget_given_limit, set_within_autoretry
from celery_sqs_visibility.errors import PublishError, QueueDoesNotExistError, UnroutableError
from celery_sqs_visibility.option_secrets import mask_settings
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.retries import End, comes_back_after
from celery_sqs_visibility.task.context import (
    LIMIT_HEADER,
    DeliveryContext,
    is_delivery,
    is_from_fifo,
    message_group,
    own_queue,
    sqs_delivery,
)
from celery_sqs_visibility.task.retries import (
    P,
    R_co,
    RetryDecisions,
    horizon_left,
    keep_celerys_own,
)
from celery_sqs_visibility.task.settings import check_settings
from celery_sqs_visibility.task.successors import await_successor, free_key, publish_continuation
from celery_sqs_visibility.task.tracing import (
    CHORD_UNLOCK,
    VisibilityRetry,
    as_ours,
    decide_failures,
    log_errors,
    trace_deliveries,
)
from celery_sqs_visibility.visibility import Visibility

if TYPE_CHECKING:
    from typing import Self  # in `typing` from Python 3.11 on


#: Calls a method: (task, method, args, kwargs).
Caller = Callable[[Any, Callable[..., Any], Any, Any], Any]

#: The attribute of a wrapper with its callers, so that a class that is bound again is not wrapped again.
CALLERS: Final = "visibility_callers"

#: Errors of a retry to a queue that does not exist: another attempt would fail, too.
NO_QUEUE: Final = (QueueNotFound, QueueDoesNotExistError, UnroutableError)

NOT_SENT: Final = "apply_async returned without having published it"

UNPUBLISHED: Final = (
    "apply_async of task %s returned without having published what self.retry(), replace() or "
    "continue_later() sends in place of the message of the run, so that message comes back instead, with its "
    "old arguments. Let apply_async publish at once where its task_id is self.request.id. This is said once "
    "for each task"
)

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
    _instance: ClassVar[Any] = None
    _may_say_unpublished = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 - a task class may take some
        """Keep the instance, for a `run` without `self`."""
        cls._instance = made = super().__new__(cls)
        return made

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Check the settings, and wrap the parts that may fail, when the task gets its app.

        Celery has annotated the class then (celery/app/task.py: `Task.bind`).

        Raises:
            ImproperlyConfigured: naming the task, the attribute, the value and the remedy.
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
        """Wrap the class's own methods, once, whoever wrote or annotated them."""
        if "given_retry_kwargs" not in vars(cls):
            cls.given_retry_kwargs = dict(getattr(cls, "retry_kwargs", None) or {})
        if cls.exclusive:
            wrap_method(cls, "run", exclusive_tasks().refuse_without_key)
        wrap_method(cls, "run", decide_failures)
        wrap_method(cls, "__call__", decide_failures)
        wrap_method(cls, "before_start", partial(decide_failures, ends=False))
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
        """The tracer of its runs, set by Celery (celery/app/trace.py: `build_tracer`)."""
        return self.__dict__.get("_tracer")

    @__trace__.setter
    def __trace__(self, tracer: Callable[..., Any] | None) -> None:
        if tracer is not None:
            tracer = trace_deliveries(self, tracer)
            if self.exclusive:
                tracer = exclusive_tasks().trace_exclusively(self, tracer)
        self.__dict__["_tracer"] = tracer

    @property
    def visibility(self) -> Visibility:
        """The running message's lease, for the task's own code."""
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

        Raises:
            Retry: do not catch it.
            MaxRetriesExceededError: or `exc`, if this was the last attempt.
        """
        if not is_delivery(self):
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        exc = instance_of(exc)
        self.request.visibility_given_limit = max_retries
        countdown = self._seconds_until(eta) if countdown is None else countdown
        if args is not None or kwargs is not None or not throw or self._needs_a_message(countdown, options):
            changes = {"args": args, "kwargs": kwargs, "throw": throw, "max_retries": max_retries, **options}
            return self._retry_by_publishing(exc, countdown, eta, changes)
        return self._retry_by_hiding(exc, countdown, self.max_retries if max_retries is None else max_retries)

    def replace(self, sig: Any) -> Any:
        """As Celery's. Frees the key of an exclusive task for its replacement."""
        free_key(self.request)
        self.await_successor(by_root=True)
        try:
            return super().replace(sig)
        except Ignore as replaced:
            self.require_successor(replaced)
            raise

    def on_run_failed(self, exc: Exception) -> NoReturn:
        """Raise the outcome of a run that raised `exc`: a `VisibilityRetry` if the message comes back."""
        if exc is self.request.visibility_final:
            raise exc
        given = self.given_retry_kwargs
        if given.keys() - {"countdown", "max_retries"} and self.comes_back(exc):
            raise self.retry(exc=exc, **given)
        self._end(End.FAILED, exc, given.get("countdown"), self.retry_limit)

    def retry_after_error_outside(self, request: DeliveryContext, exc: BaseException) -> Retry | None:
        """The `Retry` after an error of Celery's outside the task's code; `None` at the last attempt.

        If the error came while Celery handled a `Retry` of the task's own, that one stands.
        """
        decided: BaseException | None = exc
        while decided is not None and not isinstance(decided, Retry):
            decided = decided.__context__
        last = self.is_last_attempt(request, self.limit_of(request))
        if decided is None and comes_back_after(End.UNDECIDED, last=last):
            decided = VisibilityRetry(None, exc, self.delay_after(request, exc))
        retry: Retry | None = as_ours(decided)
        return retry

    def publish_continuation(self, changes: dict[str, Any]) -> Retry:
        self.await_successor()
        return publish_continuation(self, changes)

    def await_successor(self, *, by_root: bool = False) -> None:
        """Note from now on whether a successor of the run is published: see `task.successors`."""
        if is_delivery(self) and not self.app.conf.task_always_eager:
            await_successor(self.request, by_root=by_root)

    def require_successor(self, ended: Any) -> None:
        """Raise if the run ends by `ended`, but its awaited successor was not published.

        Raises:
            VisibilityRetry: by which the message comes back.
            Exception: the one of `self.retry()` or a `PublishError`, if this was the last attempt.
        """
        request = self.request
        if request.visibility_successor is not False:
            return
        if self._may_say_unpublished:
            self._may_say_unpublished = False
            logger.warning(UNPUBLISHED, self.name)
        given = request.visibility_given_limit
        exc = getattr(ended, "exc", None) or PublishError([(request.id, RuntimeError(NOT_SENT))], 1)
        limit = self.limit_of(request) if given is None else given
        self._end(End.RETRIED, exc, self._seconds_until(getattr(ended, "when", None)), limit)

    def _needs_a_message(self, countdown: float | None, options: dict[str, Any]) -> bool:
        """Returns whether a retry needs a new message."""
        if self.name == CHORD_UNLOCK:
            return True  # it polls: its receives would use up the queue's `maxReceiveCount`
        asked = {name: value for name, value in options.items() if value is not None}
        if asked.get("queue") == sqs_delivery(self.request)["queue"]:
            del asked["queue"]
        return bool(asked) or (countdown is not None and countdown > horizon_left(self.request))

    def _seconds_until(self, when: Any) -> float | None:
        """Seconds until an instant; seconds and `None` are returned as they are."""
        if not isinstance(when, datetime):
            return when  # type: ignore[no-any-return]
        return (maybe_make_aware(when, self.app.timezone) - datetime.now(UTC)).total_seconds()

    def _retry_by_hiding(self, exc: Any, countdown: float | None, limit: int | None) -> Retry:
        """Retry with the message itself, hidden for the delay.

        A hidden message cannot carry a `limit` above the task's own, so the retry to the task's own last
        attempt is published with that limit; not in a FIFO queue, where it would lose its place.
        """
        request = self.request
        known = self.limit_of(request)
        is_higher = limit is not None and known is not None and limit > known and request.retries + 1 >= known
        if is_higher and not is_from_fifo(request) and not self.is_last_attempt(request, limit):
            delay = self.delay_after(request, exc or self._exhausted(), countdown, explicit=True)
            with suppress(VisibilityRetry):  # it could not be published, and hiding needs no request of ours
                return self._retry_by_publishing(exc, delay, None, {"max_retries": limit})
        return self._end(End.RETRIED, exc, countdown, limit)

    def _end(self, end: End, exc: Any, countdown: float | None, limit: int | None) -> NoReturn:
        """Raise the outcome: a `VisibilityRetry`, or the exception with which the task fails for good."""
        request = self.request
        current = sys.exc_info()[1]
        cause = exc if isinstance(exc, BaseException) else current
        explicit = end is End.RETRIED
        retried = explicit or self.comes_back(exc)
        if not comes_back_after(end, retried=retried, last=self.is_last_attempt(request, limit)):
            request.visibility_final = exc if isinstance(exc, BaseException) else self._exhausted()
            raise request.visibility_final
        delay = self.wanted_delay(request, cause or self._exhausted(), countdown, explicit=explicit)
        if delay is not None and self._outlasts_hiding(delay, explicit=explicit):
            changed = None if limit == self.max_retries else limit
            raise self._retry_by_publishing(exc, delay, None, {"max_retries": changed})
        delay = None if delay is None else min(delay, horizon_left(request))
        raise VisibilityRetry(None, exc if exc is not None else current, delay) from cause

    def _outlasts_hiding(self, delay: float, *, explicit: bool) -> bool:
        """Returns whether to publish the retry, since SQS cannot hide a message for so long.

        In a FIFO queue only if the task called `self.retry()`, since the message loses its place. Never again
        in a run whose successor was not published.
        """
        if delay <= VISIBILITY_HORIZON_SECONDS or self.request.visibility_successor is not None:
            return False
        return explicit or not is_from_fifo(self.request)

    def _exhausted(self) -> MaxRetriesExceededError:
        request = self.request
        return MaxRetriesExceededError(
            f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
            task_args=request.args,
            task_kwargs=request.kwargs,
        )

    def _retry_by_publishing(
        self, exc: Any, countdown: float | None, eta: datetime | None, given: dict[str, Any]
    ) -> Retry:
        """Retry as Celery does, with the message group and the given limit, which Celery forgets."""
        request = self.request
        goes_elsewhere = any(given.get(name) for name in ("queue", "exchange", "routing_key"))
        options = {**message_group(request), **({} if goes_elsewhere else own_queue(request)), **given}
        if given["max_retries"] is not None:
            headers = options.get("headers") or request.headers or {}
            options["headers"] = {**headers, LIMIT_HEADER: given["max_retries"]}
        limit = self.max_retries if given["max_retries"] is None else given["max_retries"]
        if given.get("throw", True) and (limit is None or request.retries < limit):
            free_key(request)  # otherwise nothing is published
        self.await_successor()
        try:
            return super().retry(exc=exc, countdown=countdown, eta=eta, **options)
        except Retry:
            raise
        except Reject as failure:
            # Celery could not publish the retry, and would delete the message.
            rejected: Any = failure
            reason = rejected.reason if isinstance(rejected.reason, BaseException) else failure
            if goes_elsewhere and isinstance(reason, NO_QUEUE):
                request.visibility_final = reason
                raise reason from exc
            delay = self.delay_after(request, reason, countdown, explicit=True)
            raise VisibilityRetry(None, reason, delay) from failure
        except Exception as final:
            if final is exc or isinstance(final, self.MaxRetriesExceededError):
                request.visibility_final = final
            raise
        finally:
            forget_given_limit(self)


def instance_of(exc: Any) -> Any:
    """The exception that a task gave to `self.retry()`; a class is called, as by `raise`."""
    if isinstance(exc, type) and issubclass(exc, BaseException):
        with suppress(TypeError):  # it takes arguments
            return exc()
    return exc


def exclusive_tasks() -> ModuleType:
    """The module of exclusive tasks, imported only for those."""
    return import_module("celery_sqs_visibility.task.exclusive")


def _on_commit(publish: Callable[[], object]) -> None:
    """As Celery's Django fixup does, for tasks of its own class only (celery/contrib/django/task.py)."""
    from django.db import transaction  # noqa: PLC0415 - an app without Django never comes here

    transaction.on_commit(publish)


def wrap_method(cls: Any, name: str, call: Caller) -> None:
    """Wrap a method of a class in `call`, unless it is Celery's own. Idempotent."""
    raw = getattr_static(cls, name)
    if raw is getattr_static(Task, name):
        return
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    callers = getattr(function, CALLERS, ())
    caller = getattr(call, "func", call)  # of a `partial`
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
