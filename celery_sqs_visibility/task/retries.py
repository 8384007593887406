"""Decisions about a failed run: whether, how often, and after how long it is retried.

Used in the pool's child and, if the child is gone, in the worker's main process.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

from celery import Task
from celery.exceptions import Retry, SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.utils.time import get_exponential_backoff_interval

from celery_sqs_visibility.errors import InactivityError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.retries import (
    DelayRule,
    DelayRules,
    End,
    choose_delay,
    comes_back_after,
    is_last_attempt,
    parse_delay,
    whole_seconds,
)
from celery_sqs_visibility.task.context import DeliveryContext, sqs_delivery

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:

    class GenericTask(Task[P, R_co], Generic[P, R_co]):
        """Celery's `Task`, generic in parameters and result, as in celery-types and without them."""

else:

    class GenericTask(Task):
        """A class that returns itself when subscripted, as in `class Mine(VisibilityTask[P, R])`.

        `Task[...]` fails before Celery 5.7 and makes an alias since (celery/app/task.py), but `base=` takes
        a class (celery/app/base.py: `_task_from_fun`).
        """

        abstract = True

        def __class_getitem__(cls, parameters: Any) -> type[GenericTask]:
            return cls


logger = logging.getLogger(__name__)


class _EveryException(tuple[()]):
    """The default of `autoretry_for`: every exception on SQS; none elsewhere, as for any Celery task."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(Exception,)"


EVERY_EXCEPTION: tuple[type[BaseException], ...] = _EveryException()

TIME_LIMITS = (SoftTimeLimitExceeded, TimeLimitExceeded)

#: A time limit, an inactive run or a lost pool child says nothing about the task's own errors.
LOST_RUNS = (*TIME_LIMITS, WorkerLostError, InactivityError)

#: Logged, not raised: an error in a rule must not replace the task's own.
RULE_FAILED = "error_visibility_timeout of task %s failed; the next rule decides"

#: (retries, exc)
DELAY_ARGUMENTS = 2

#: The most time between a run's end in the child and its settlement.
SETTLED_WITHIN_SECONDS = 5.0


class VisibilityRetry(Retry):
    """The message comes back. Pickled on its way to the worker's main process.

    Attributes:
        delay: seconds to hide it; `None` lets its visibility timeout run out.
    """

    def __init__(self, message: str | None = None, exc: Any = None, when: Any = None, **kwargs: Any) -> None:
        super().__init__(message, exc, when, **kwargs)
        self.delay: float | None = when

    def humanize(self) -> str:
        """When the message comes back, for log lines."""
        if self.delay is None:
            return "when its visibility timeout runs out"
        return f"in {whole_seconds(self.delay)} s"


class RetryDecisions(GenericTask[P, R_co]):
    """The decisions of `VisibilityTask`, which documents the attributes. Without side effects."""

    abstract = True
    autoretry_for: ClassVar[tuple[type[BaseException], ...]] = EVERY_EXCEPTION
    dont_autoretry_for: ClassVar[tuple[type[BaseException], ...]] = ()
    error_visibility_timeout: Any = None
    brake_on: ClassVar[tuple[type[BaseException], ...]] = ()
    #: The task's `retry_kwargs`, copied: Celery's autoretry changes them until 5.7.
    given_retry_kwargs: ClassVar[dict[str, Any]] = {}

    if TYPE_CHECKING:

        @property
        def request(self) -> DeliveryContext: ...

    def comes_back(self, exc: BaseException) -> bool:
        """Returns whether a run that failed with `exc` is retried, attempts permitting."""
        if isinstance(exc, tuple(self.dont_autoretry_for or ())):
            return False
        if self.autoretry_for is EVERY_EXCEPTION or isinstance(exc, LOST_RUNS):
            return True
        return isinstance(exc, tuple(self.autoretry_for or ()))

    @property
    def retry_limit(self) -> int | None:
        """The most retries of an unhandled failure; `None` is no limit."""
        given = self.given_retry_kwargs.get("max_retries")
        return self.max_retries if given is None else given

    def limit_of(self, request: DeliveryContext) -> int | None:
        """The limit of a run: that of an earlier run's published retry, otherwise the task's."""
        published = request.visibility_max_retries
        return self.retry_limit if published is None else published

    def is_last_attempt(self, request: DeliveryContext, max_retries: int | None) -> bool:
        """Returns whether a failure of this run is final."""
        sqs = sqs_delivery(request)
        return is_last_attempt(request.retries, max_retries, sqs["receive_count"], sqs["max_receive_count"])

    def is_forgiven(self, request: DeliveryContext, exc: Any) -> bool:
        """Returns whether a failure is no attempt, because a try found that the dependency still fails."""
        return bool(request.visibility_try) and isinstance(exc, self.brake_on)

    def is_beyond_limit(self, request: DeliveryContext) -> bool:
        """Returns whether more runs have begun than the limit allows: some receives were not attempts."""
        limit = self.limit_of(request) if request.retries else None
        return limit is not None and request.retries > limit

    def wanted_delay(
        self,
        request: DeliveryContext,
        exc: BaseException,
        countdown: float | None = None,
        *,
        explicit: bool = False,
    ) -> float | None:
        """Seconds until the next attempt, by the first rule that applies; `None` keeps the timeout."""
        failed = partial(logger.exception, RULE_FAILED, self.name)
        rules = self.rules_in(sqs_delivery(request)["queue"])
        return choose_delay(
            rules, request.retries, exc, explicit=explicit, countdown=countdown, failed=failed
        )

    def delay_after(
        self,
        request: DeliveryContext,
        exc: BaseException,
        countdown: float | None = None,
        *,
        explicit: bool = False,
    ) -> float | None:
        """Seconds to hide the message of a failed run; `None` lets its visibility timeout run out."""
        delay = self.wanted_delay(request, exc, countdown, explicit=explicit)
        return None if delay is None else min(delay, horizon_left(request))

    def retry_after_error_outside(self, request: DeliveryContext, exc: BaseException) -> Retry | None:
        """The `Retry` after an error of Celery's outside the task's code; `None` at the last attempt.

        If the error occurred while Celery handled a `Retry` of the task's own, that one is returned.
        """
        decided: BaseException | None = exc
        while decided is not None and not isinstance(decided, Retry):
            decided = decided.__context__
        last = self.is_last_attempt(request, self.limit_of(request))
        if decided is None and comes_back_after(End.UNDECIDED, last=last):
            decided = VisibilityRetry(None, exc, self.delay_after(request, exc))
        retry: Retry | None = as_ours(decided)
        return retry

    def rules_in(self, queue: str) -> DelayRules:
        """The rules of the task and the queue. Makes no request."""
        options = self._options
        if options is None:
            return self._delay_rules
        return replace(
            self._delay_rules,
            queue=options.backoff_policy(queue, self.name),
            fallback=options.for_queue(queue).error_visibility_timeout,
        )

    @cached_property
    def _options(self) -> Options | None:
        """The options of the app's broker; `None` on any other broker. Makes no request."""
        with self.app.connection_for_read() as connection:
            options = getattr(connection.transport, "options", None)
        return options if isinstance(options, Options) else None

    @cached_property
    def _delay_rules(self) -> DelayRules:
        above_celery = type(self).__mro__[: type(self).__mro__.index(RetryDecisions)]
        sets_delay = any("default_retry_delay" in cls.__dict__ for cls in above_celery)
        return DelayRules(
            task=self._delay_rule(self),
            backoff=_celery_backoff(self),
            retry_delay=self.default_retry_delay if sets_delay else None,
        )

    @classmethod
    def _delay_rule(cls, task: RetryDecisions[..., Any] | None = None) -> DelayRule | None:
        """The rule in `error_visibility_timeout`, which may be a method of `task`.

        Raises:
            ValueError: names the value and what is allowed.
        """
        value = inspect.getattr_static(cls, "error_visibility_timeout")
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__get__(task, cls)
        elif inspect.isfunction(value) and len(inspect.signature(value).parameters) > DELAY_ARGUMENTS:
            value = partial(value, task)  # a method; a function given to the decorator takes no self
        return parse_delay("error_visibility_timeout", value)


def keep_celerys_own(cls: type[RetryDecisions[..., Any]]) -> None:
    """Retry a built-in task of Celery (celery/app/builtins.py) only after a lost child.

    `celery.map` and the like run other tasks, whose own settings apply.
    """
    if cls.__module__.startswith("celery.") and cls.autoretry_for is EVERY_EXCEPTION:
        cls.autoretry_for, cls.dont_autoretry_for = (), TIME_LIMITS


def as_ours(exc: Any) -> Any:
    """The exception that a plain `Retry` carries; any other is returned as it is."""
    return getattr(exc, "visibility_retry", exc)


def _celery_backoff(task: Any) -> DelayRule | None:
    """Celery's `retry_backoff`, `retry_backoff_max` and `retry_jitter` (celery/app/autoretry.py)."""
    if not getattr(task, "retry_backoff", False):
        return None
    factor = int(max(1.0, float(task.retry_backoff)))
    maximum, jitter = int(getattr(task, "retry_backoff_max", 600)), bool(getattr(task, "retry_jitter", True))
    return lambda retries, _exc: get_exponential_backoff_interval(factor, retries, maximum, jitter)


def horizon_left(request: DeliveryContext) -> float:
    """Seconds for which the message can still be hidden within SQS's 12 hours."""
    left = sqs_delivery(request)["horizon"] - SYSTEM_CLOCK.monotonic() - SETTLED_WITHIN_SECONDS
    return max(0.0, left)
