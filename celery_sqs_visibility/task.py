"""The task base class: a failure hides the message it came with, instead of publishing another.

The decision is made where the exception is, in the pool's child, since not every exception can be pickled
(Celery sends `UnpickleableExceptionWrapper` instead): `__call__` turns a failure that comes back into a
`VisibilityRetry`, which Celery's tracer (celery/app/trace.py: `build_tracer`) records as RETRY. The worker's
main process finds the delay in it and settles the message (`celery_sqs_visibility.request`).
"""

from __future__ import annotations

import inspect
import logging
import sys
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn

from celery import Task
from celery.app.task import Context
from celery.exceptions import (
    Ignore,
    ImproperlyConfigured,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.time import get_exponential_backoff_interval

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.delays import DelayRule, DelayRules, choose_delay, parse_delay
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON
from celery_sqs_visibility.policy.retrying import is_last_attempt

logger = logging.getLogger(__name__)


class _EveryException(tuple[()]):
    """The default of `autoretry_for`: every exception, on SQS; elsewhere none, as for any Celery task."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(Exception,)"


EVERY_EXCEPTION: tuple[type[BaseException], ...] = _EveryException()

#: A time limit or a lost pool child says nothing about the task's own errors.
LOST_RUNS = (SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError)

#: (retries, exc)
TWO_ARGUMENTS = 2

# Celery takes every key of a request that its Context does not know for a header of the message, and sends
# it along with retries and chains (celery/app/task.py: `Context._get_custom_headers`). Ours it shall know;
# and so `self.request.sqs` is `None` wherever there is no SQS.
Context.sqs = None

#: What is left of the 12 hours is known to this many seconds.
HORIZON_MARGIN = 5.0


class VisibilityRetry(Retry):
    """The message comes back by itself.

    Attributes:
        delay: seconds to hide it, or `None`: the rest of its visibility timeout.
    """

    def __init__(
        self, message: str | None = None, exc: BaseException | None = None, when: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(message, exc, when, **kwargs)
        self.delay: float | None = when

    def humanize(self) -> str:
        """For Celery's log line, "Task retry: ..."."""
        return "when its visibility timeout runs out" if self.delay is None else f"in {self.delay:g}s"


class VisibilityTask(Task):
    """`base=VisibilityTask`, or `Celery(task_cls=VisibilityTask)` for all tasks of an app.

    On any other broker, called directly or eagerly, it is a plain Celery task.

    Attributes:
        error_visibility_timeout: how long the message of a failed run stays hidden: seconds, a list by
            attempt (the last repeats), or `callable(retries, exc)`, which may be a method. `None` leaves it
            to `retry_backoff`, `default_retry_delay` and the transport option of this name.
        autoretry_for: which exceptions come back; every one by default. Time limits and lost pool children
            come back in any case, unless `dont_autoretry_for` names them.
        max_retries: as in Celery. `None` leaves the end to the queue's redrive policy.
    """

    abstract = True
    acks_late = True
    # What becomes of a failure is decided here; at the last attempt Celery is to see a plain failure.
    acks_on_failure_or_timeout = True
    acks_on_failure = True
    acks_on_timeout = True
    reject_on_worker_lost = False
    retry_on_worker_lost = False
    Request = "celery_sqs_visibility.request:VisibilityRequest"
    autoretry_for: ClassVar[tuple[type[BaseException], ...]] = EVERY_EXCEPTION
    dont_autoretry_for: ClassVar[tuple[type[BaseException], ...]] = ()
    error_visibility_timeout: Any = None

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Check the settings, once, when the task gets its app (celery/app/task.py: `Task.bind`).

        Raises:
            ImproperlyConfigured: naming the task, the attribute, the value and the remedy.
        """
        bound = super().bind(app)
        if not cls.acks_late:
            raise ImproperlyConfigured(
                f"task {cls.name!r} has acks_late={cls.acks_late!r}, but a VisibilityTask is acknowledged "
                "late: what was deleted before the run cannot come back after it; remove acks_late or use "
                "another base"
            )
        cls._delay_rule()
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; a failure that comes back is raised as `VisibilityRetry`."""
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected or not _has_sqs(request):  # noqa: SLF001
            return super().__call__(*args, **kwargs)
        # As Celery's own __call__ in a worker does (celery/app/trace.py: `_install_stack_protection`), so
        # that a task which calls itself is called directly.
        request._protected = 1  # noqa: SLF001
        try:
            # Without Celery's autoretry, which would choose a delay before we are asked.
            return getattr(self, "_orig_run", self.run)(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as exc:
            if not self.comes_back(exc):
                raise
            given = dict(getattr(self, "retry_kwargs", None) or {})
            self._retry_by_visibility(
                exc, given.get("countdown"), given.get("max_retries", self.max_retries), explicit=False
            )

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,  # noqa: FBT001, FBT002
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Try again later, with the same message if SQS can express that, otherwise as Celery does.

        It cannot: other arguments, another queue or other options, `throw=False`, or a delay longer than
        what is left of the 12 hours.

        Raises:
            Retry: to be passed on.
            MaxRetriesExceededError: or `exc`, if this was the last attempt.
        """
        request = self.request
        if request.called_directly or not _has_sqs(request):
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if eta is not None and countdown is None:
            countdown = (_aware(eta) - datetime.now(timezone.utc)).total_seconds()
        if not (
            throw and self._says_nothing_new(request, args, kwargs, options) and _fits(request, countdown)
        ):
            return self._retry_by_publishing(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        self._retry_by_visibility(
            exc, countdown, self.max_retries if max_retries is None else max_retries, explicit=True
        )
        return None

    def delay_after(
        self, request: Context, exc: BaseException, countdown: float | None = None, *, explicit: bool = False
    ) -> float | None:
        """Seconds to hide the message of a failed run; `None`: the rest of its visibility timeout."""
        rules = self._delay_rules
        try:
            delay = choose_delay(rules, request.retries, exc, explicit=explicit, countdown=countdown)
        except Exception:
            # It must not take the place of the task's own error.
            logger.exception("error_visibility_timeout of task %s failed", self.name)
            delay = choose_delay(DelayRules(), request.retries, exc, explicit=explicit)
        return None if delay is None else min(delay, _horizon_left(request))

    def is_last_attempt(self, request: Context, max_retries: int | None) -> bool:
        """Whether a failure of this run is for good."""
        sqs = request.sqs
        return is_last_attempt(request.retries, max_retries, sqs["receive_count"], sqs["max_receive_count"])

    def comes_back(self, exc: BaseException) -> bool:
        """Whether a run that failed with `exc` is tried again, attempts permitting."""
        if isinstance(exc, tuple(self.dont_autoretry_for or ())):
            return False
        if self.autoretry_for is EVERY_EXCEPTION or isinstance(exc, LOST_RUNS):
            return True
        return isinstance(exc, tuple(self.autoretry_for or ()))

    def _retry_by_visibility(
        self, exc: BaseException | None, countdown: float | None, max_retries: int | None, *, explicit: bool
    ) -> NoReturn:
        request = self.request
        if self.is_last_attempt(request, max_retries):
            if exc is not None:
                raise exc
            raise MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        cause = exc or sys.exc_info()[1] or MaxRetriesExceededError()
        delay = self.delay_after(request, cause, countdown, explicit=explicit)
        raise VisibilityRetry(None, exc, delay) from exc

    def _retry_by_publishing(self, *args: Any, **options: Any) -> Any:
        group = (self.request.properties or {}).get("MessageGroupId")
        if group is not None:
            options.setdefault("MessageGroupId", group)  # Celery forgets it
        try:
            return super().retry(*args, **options)
        except Reject as failure:
            # Celery could not publish the retry, and would have the message deleted.
            reason = failure.reason if isinstance(failure.reason, BaseException) else failure
            raise VisibilityRetry(None, reason, self.delay_after(self.request, reason)) from failure

    def _says_nothing_new(self, request: Context, args: Any, kwargs: Any, options: dict[str, Any]) -> bool:
        same_queue = options.pop("queue", None) in (None, request.sqs["queue"])
        return (
            same_queue
            and not options
            and (args is None or list(args) == list(request.args or ()))
            and (kwargs is None or dict(kwargs) == dict(request.kwargs or {}))
        )

    @classmethod
    def _delay_rule(cls, task: VisibilityTask | None = None) -> DelayRule | None:
        """The attribute `error_visibility_timeout`, checked; `task` is what a method of it belongs to."""
        value = inspect.getattr_static(cls, "error_visibility_timeout")
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__get__(task, cls)
        elif inspect.isfunction(value) and len(inspect.signature(value).parameters) > TWO_ARGUMENTS:
            value = partial(value, task)  # a method; what the decorator was given takes no self
        try:
            return parse_delay("error_visibility_timeout", value)
        except ValueError as error:
            raise ImproperlyConfigured(f"task {cls.name!r}: {error}") from None

    @cached_property
    def _delay_rules(self) -> DelayRules:
        return DelayRules(
            task=self._delay_rule(self),
            backoff=_CeleryBackoff(self) if getattr(self, "retry_backoff", False) else None,
            retry_delay=self.default_retry_delay if _is_set(type(self), "default_retry_delay") else None,
            fallback=Options.parse(self.app.conf.broker_transport_options).error_visibility_timeout,
        )


class _CeleryBackoff:
    """Celery's `retry_backoff`, `retry_backoff_max` and `retry_jitter` (celery/app/autoretry.py)."""

    def __init__(self, task: Any) -> None:
        self._factor = int(max(1.0, float(task.retry_backoff)))
        self._maximum = int(getattr(task, "retry_backoff_max", 600))
        self._jitter = bool(getattr(task, "retry_jitter", True))

    def delay(self, retries: int, exc: BaseException) -> float:  # noqa: ARG002 - the protocol's shape
        """What Celery's own autoretry would take."""
        return get_exponential_backoff_interval(self._factor, retries, self._maximum, self._jitter)


def _has_sqs(request: Context) -> bool:
    return request.sqs is not None and not request.is_eager


def _is_set(cls: type, attribute: str) -> bool:
    """Whether a class below Celery's own sets it."""
    return any(attribute in base.__dict__ for base in cls.__mro__[: cls.__mro__.index(VisibilityTask)])


def _aware(eta: datetime) -> datetime:
    return eta if eta.tzinfo else eta.replace(tzinfo=timezone.utc)


def _horizon_left(request: Context) -> float:
    """Seconds that the message can still be hidden."""
    held = SYSTEM_CLOCK.wall() - float(request.sqs["received"])
    return max(0.0, VISIBILITY_HORIZON - held - HORIZON_MARGIN)


def _fits(request: Context, countdown: float | None) -> bool:
    return countdown is None or countdown <= _horizon_left(request)
