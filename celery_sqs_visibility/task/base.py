"""The task base class: a failure hides the message it came with, instead of publishing another.

The decision is made where the exception is, in the pool's child, since not every exception can be pickled
(Celery sends `UnpickleableExceptionWrapper` instead): `run` and `before_start` are wrapped, as Celery's
autoretry wraps `run` (celery/app/autoretry.py), so that a failure which comes back becomes a
`VisibilityRetry`, which Celery's tracer (celery/app/trace.py: `build_tracer`) records as RETRY. What fails
outside them, Celery's tracer being at it, is decided in `task.tracing`. The worker's main
process finds the delay in the `VisibilityRetry` and settles the message
(`worker.visibility_request`).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn

from celery import Task
from celery.app.task import Context
from celery.exceptions import (
    ImproperlyConfigured,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.time import get_exponential_backoff_interval, maybe_make_aware

from celery_sqs_visibility.aws.queues import FIFO_SUFFIX
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.attempts import is_last_attempt
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.fates import End, Fate, fate_of
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.retry_delays import DelayRule, DelayRules, choose_delay, parse_delay
from celery_sqs_visibility.task.tracing import (
    CHORD_UNLOCK,
    LIMIT_HEADER,
    VisibilityRetry,
    is_a_delivery,
    logging_errors,
    retry_before,
    trace_deliveries,
    turning_failures,
    turning_failures_of_call,
)
from celery_sqs_visibility.visibility import Visibility

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

#: Seconds from a run's end, when the child looks at what is left of the 12 hours, to the settling.
HAND_OVER = 5.0


class VisibilityTask(Task):
    """`base=VisibilityTask`, or `Celery(task_cls=VisibilityTask)` for all tasks of an app.

    On any other broker, called directly or eagerly, it is a plain Celery task.

    Attributes:
        error_visibility_timeout: how long the message of a failed run stays hidden: seconds, a list by
            attempt (the last repeats), or `callable(retries, exc)`, which may be a method. `None` leaves it
            to `retry_backoff`, `default_retry_delay` and the transport option of this name.
        autoretry_for: which exceptions come back; every one by default. Time limits and lost pool children
            come back in any case, unless `dont_autoretry_for` names them.
        on_exhausted: what becomes of the message after the last attempt where there is no dead-letter queue:
            "delete" or "keep". `None` is the transport option of this name.
        max_retries: as in Celery. `None` leaves the end to the queue's redrive policy.
        on_lost: "continue" or "terminate": whether a run goes on whose message another worker may have.
            `None` leaves it to the transport option of this name.
    """

    abstract = True
    acks_late = True
    Request = "celery_sqs_visibility.worker.visibility_request:VisibilityRequest"
    autoretry_for: ClassVar[tuple[type[BaseException], ...]] = EVERY_EXCEPTION
    dont_autoretry_for: ClassVar[tuple[type[BaseException], ...]] = ()
    error_visibility_timeout: Any = None
    on_exhausted: ClassVar[str | None] = None
    on_lost: ClassVar[str | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG004 - a task class may take some
        """Wrap what of the task may fail; a `__call__` or `__init__` of the user's does not undo it."""
        task = super().__new__(cls)
        # Celery's autoretry, which wraps it later, changes the task's own until 5.7.
        task._retry_kwargs = dict(getattr(task, "retry_kwargs", None) or {})
        task.run = turning_failures(task, task.run)
        task.on_failure = logging_errors(task, task.on_failure)
        if cls.before_start is not Task.before_start:
            task.before_start = turning_failures(task, task.before_start, ends=False)
        return task

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
        # What becomes of a failure is decided here; at the last attempt Celery is to see a plain failure.
        cls.acks_on_failure_or_timeout = cls.acks_on_failure = cls.acks_on_timeout = True
        cls.reject_on_worker_lost = cls.retry_on_worker_lost = False
        cls._delay_rule()
        _check_choice(cls, "on_exhausted")
        _check_choice(cls, "on_lost")
        if cls.__call__ is not Task.__call__ and not hasattr(cls.__call__, "turns_failures"):
            cls.__call__ = turning_failures_of_call(cls.__call__)
        return bound

    @property
    def __trace__(self) -> Callable[..., Any] | None:
        """The tracer of its runs, which Celery builds and sets (celery/app/trace.py: `build_tracer`)."""
        return self.__dict__.get("_tracer")

    @__trace__.setter
    def __trace__(self, tracer: Callable[..., Any] | None) -> None:
        self.__dict__["_tracer"] = None if tracer is None else trace_deliveries(self, tracer)

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
        what is left of the 12 hours. Nor can a message be told a `max_retries` beyond the task's own: so the
        retry that leads to the task's own last attempt is published, with that limit (not in a FIFO queue,
        where it would lose its place).

        Raises:
            Retry: to be passed on.
            MaxRetriesExceededError: or `exc`, if this was the last attempt.
        """
        if not is_a_delivery(self):
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if eta is not None and countdown is None:
            countdown = _seconds_until(maybe_make_aware(eta, self.app.timezone))
        limit = self.max_retries if max_retries is None else max_retries
        if args is not None or kwargs is not None or not throw or self._needs_a_message(countdown, options):
            changes = {"args": args, "kwargs": kwargs, "throw": throw, "max_retries": max_retries, **options}
            return self._retry_by_publishing(exc, countdown, eta, changes)
        if self._is_limit_to_be_told(limit):
            delay = self.delay_after(self.request, exc or self._exhausted(), countdown, explicit=True)
            with suppress(VisibilityRetry):  # it cannot be told, and the retry itself needs no message
                return self._retry_by_publishing(exc, delay, None, {"max_retries": limit})
        self._end(End.RETRIED, exc, countdown, limit)
        return None

    def on_run_failed(self, exc: Exception) -> NoReturn:
        """A run raised `exc`: raise what Celery is to see, which is a `VisibilityRetry` if it comes back."""
        if exc is self.request.visibility_final:
            raise exc
        given = self._retry_kwargs
        if given.keys() - {"countdown", "max_retries"} and self.comes_back(exc):
            raise self.retry(exc=exc, **given)
        self._end(End.FAILED, exc, given.get("countdown"), self.retry_limit)

    def retry_after_error_outside(self, request: Context, exc: BaseException) -> Retry | None:
        """Celery failed outside the task's own code: how the run comes back; `None`: it was the last attempt.

        What the task itself decided before stands: that it comes back after a delay, or that its successor is
        published.
        """
        decided = retry_before(exc)
        last = self.is_last_attempt(request, self.limit_of(request))
        if decided is None and fate_of(End.UNDECIDED, last=last) is Fate.COME_BACK:
            decided = VisibilityRetry(None, exc, self.delay_after(request, exc))
        return decided

    @property
    def visibility(self) -> Visibility:
        """The running message's lease, and whether the worker is stopping: for the task's own code."""
        return Visibility(self.request)

    @property
    def retry_limit(self) -> int | None:
        """How often a failure that nobody handles is retried: `max_retries`, also in `retry_kwargs`."""
        given = self._retry_kwargs.get("max_retries")
        return self.max_retries if given is None else given

    def limit_of(self, request: Context) -> int | None:
        """How often the message of a run that cannot tell is retried: as a run before it said, if one did."""
        told: int | None = request.visibility_max_retries
        return self.retry_limit if told is None else told

    def _is_limit_to_be_told(self, limit: int | None) -> bool:
        """Whether this retry leads to what others take for the last attempt, and is given a higher limit."""
        request = self.request
        known = self.limit_of(request)
        if limit is None or known is None or limit <= known or request.retries + 1 < known:
            return False
        url = request.properties["delivery_info"]["sqs_queue"]
        return not (url.endswith(FIFO_SUFFIX) or self.is_last_attempt(request, limit))

    def _needs_a_message(self, countdown: float | None, options: dict[str, Any]) -> bool:
        """Whether a retry asks for more than to come back, which takes a message of its own."""
        request = self.request
        if self.name == CHORD_UNLOCK:
            return True  # to poll is not to fail: its receives would use up the queue's `maxReceiveCount`
        if countdown is not None and countdown > _horizon_left(request):
            return True
        return any(
            value is not None and not (name == "queue" and value == request.sqs["queue"])
            for name, value in options.items()
        )

    def delay_after(
        self, request: Context, exc: BaseException, countdown: float | None = None, *, explicit: bool = False
    ) -> float | None:
        """Seconds to hide the message of a failed run; `None`: the rest of its visibility timeout."""
        # An error of a rule must not take the place of the task's own.
        failed = partial(logger.exception, "error_visibility_timeout of task %s failed", self.name)
        delay = choose_delay(
            self._delay_rules, request.retries, exc, explicit=explicit, countdown=countdown, failed=failed
        )
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

    def _end(
        self, end: End, exc: BaseException | str | None, countdown: float | None, limit: int | None
    ) -> NoReturn:
        request = self.request
        current = sys.exc_info()[1]
        cause = exc if isinstance(exc, BaseException) else current
        explicit = end is End.RETRIED
        retried = explicit or (cause is not None and self.comes_back(cause))
        if fate_of(end, retried=retried, last=self.is_last_attempt(request, limit)) is Fate.GIVE_UP:
            request.visibility_final = exc if isinstance(exc, BaseException) else self._exhausted()
            raise request.visibility_final
        delay = self.delay_after(request, cause or self._exhausted(), countdown, explicit=explicit)
        raise VisibilityRetry(None, exc if exc is not None else current, delay) from cause

    def _exhausted(self) -> MaxRetriesExceededError:
        request = self.request
        return MaxRetriesExceededError(
            f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
            task_args=request.args,
            task_kwargs=request.kwargs,
        )

    def _retry_by_publishing(
        self, exc: BaseException | None, countdown: float | None, eta: datetime | None, given: dict[str, Any]
    ) -> Any:
        """Retry as Celery does, with what it forgets: the message group, and the limit that it was given."""
        request = self.request
        options = dict(given)
        group = (request.properties or {}).get("MessageGroupId")
        if group is not None:
            options.setdefault("MessageGroupId", group)
        if given["max_retries"] is not None:
            headers = options.get("headers") or request.headers or {}
            options["headers"] = {**headers, LIMIT_HEADER: given["max_retries"]}
        try:
            return super().retry(exc=exc, countdown=countdown, eta=eta, **options)
        except Retry:
            raise
        except Reject as failure:
            # Celery could not publish the retry, and would have the message deleted.
            reason = failure.reason if isinstance(failure.reason, BaseException) else failure
            delay = self.delay_after(request, reason, countdown, explicit=True)
            raise VisibilityRetry(None, reason, delay) from failure
        except Exception as final:
            if final is exc or isinstance(final, self.MaxRetriesExceededError):
                request.visibility_final = final
            raise
        finally:
            # Celery keeps it for its autoretry, on the task: the next message would be given it, too.
            self.__dict__.pop("override_max_retries", None)

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


def _check_choice(cls: type[VisibilityTask], name: str) -> None:
    """Of an attribute that may take the place of a transport option: whether that option would take it.

    Raises:
        ImproperlyConfigured: naming the task, the attribute, the value and what it may be.
    """
    try:
        Options.parse({name: getattr(cls, name)})
    except OptionError as error:
        raise ImproperlyConfigured(f"task {cls.name!r}: {error}") from None


def _is_set(cls: type, attribute: str) -> bool:
    """Whether a class below Celery's own sets it."""
    return any(attribute in base.__dict__ for base in cls.__mro__[: cls.__mro__.index(VisibilityTask)])


def _seconds_until(instant: datetime) -> float:
    return (instant - datetime.now(timezone.utc)).total_seconds()


def _horizon_left(request: Context) -> float:
    """Seconds that the message can still be hidden."""
    left: float = request.sqs["horizon"] - SYSTEM_CLOCK.monotonic() - HAND_OVER
    return max(0.0, left)
