"""Retries of a message: whether it comes back when a run ends, how often, and after how long.

The pool's child decides, because it has the exception (`task.tracing`). If the child is gone, the main
process decides with the same functions (`worker.visibility_request`). After any other end Celery acknowledges
or rejects the message (celery/worker/request.py).
"""

from __future__ import annotations

import enum
import inspect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: Receives after which an unreadable message is given up, so that its FIFO group goes on: the attempts of a
#: task that sets no `max_retries` (Celery's default is 3).
UNREADABLE_RECEIVES: Final = 4

#: A message whose task another worker may know, as in a rolling deploy, is kept for this long.
UNKNOWN_TASK_SECONDS: Final = 3600.0

#: Receives beyond the last attempt at which a message is still run: a release counts as a receive, and a
#: message that was only released must not fail without a run.
RELEASES_FORGIVEN: Final = 3


def attempts_made(receive_count: int, parkings: int, published_retries: int) -> int:
    """Count the attempts before this one: Celery's `request.retries`.

    Every receive except known parks counts: a worker that was killed leaves no other trace.
    `published_retries` are those of Celery's own retries, from the message's header.
    """
    return published_retries + max(0, receive_count - 1 - parkings)


def attempts_allowed(
    retries: int, max_retries: int | None, receive_count: int, max_receive_count: int | None
) -> int | None:
    """Count the attempts that a message has in total; `None` if there is no limit.

    The limit is `max_retries + 1`, or what the queue's `maxReceiveCount` leaves: after that SQS moves the
    message to the dead-letter queue.
    """
    limits = [] if max_retries is None else [max_retries + 1]
    if max_receive_count is not None:
        limits.append(retries + 1 + max_receive_count - receive_count)
    return min(limits, default=None)


def is_last_attempt(
    retries: int, max_retries: int | None, receive_count: int, max_receive_count: int | None
) -> bool:
    """Returns whether a failure now is final."""
    allowed = attempts_allowed(retries, max_retries, receive_count, max_receive_count)
    return allowed is not None and retries + 1 >= allowed


def are_spent(retries: int, max_retries: int | None) -> bool:
    """Returns whether all attempts are used up, with more receives than releases could explain."""
    return max_retries is not None and retries - max_retries > RELEASES_FORGIVEN


def is_permanently_unreadable(receive_count: int, seconds_known: float, *, others_may: bool) -> bool:
    """Returns whether to give up an unreadable message of a FIFO queue, so that its group goes on.

    Args:
        receive_count: of the message.
        seconds_known: time since its first receive.
        others_may: whether another worker may know its task.
    """
    kept_for = UNKNOWN_TASK_SECONDS if others_may else 0.0
    return receive_count >= UNREADABLE_RECEIVES and seconds_known >= kept_for


class End(enum.Enum):
    """How a run of a `VisibilityTask` ended, if the message may come back."""

    FAILED = "the task raised an exception"
    RETRIED = "the task called `self.retry()`, which changes nothing but the time"
    UNDECIDED = "Celery failed outside the task: the result backend, publishing what follows, pickling"
    LOST = "the child is gone, a time limit has passed, or the run has shown no life"


def comes_back_after(end: End, *, retried: bool = True, last: bool = False) -> bool:
    """Returns whether the message comes back; otherwise it is given up.

    Args:
        end: how the run ended.
        retried: whether the task retries this exception (`autoretry_for`, `dont_autoretry_for`). Only for
            `FAILED` and `LOST`: the exception of `UNDECIDED` is not the task's.
        last: whether this was the last attempt.
    """
    return not last and (retried or end not in (End.FAILED, End.LOST))


#: A rule for the delay before a retry: seconds to hide the message after a number of earlier failures and an
#: exception; `None` leaves it to the next rule.
DelayRule = Callable[[int, BaseException], float | None]


def by_attempt(*seconds: float) -> DelayRule:
    """A rule with seconds for each attempt; the last repeats."""
    return lambda retries, _exc: seconds[min(max(retries, 0), len(seconds) - 1)]


def checked(function: DelayRule) -> DelayRule:
    """The rule of a user's function, at most 12 hours, which a steep backoff soon exceeds.

    The rule raises a ValueError if the function returns neither `None` nor a number of seconds.
    """

    def rule(retries: int, exc: BaseException) -> float | None:
        seconds = function(retries, exc)
        if seconds is None:
            return None
        if isinstance(seconds, (int, float)) and seconds > VISIBILITY_HORIZON_SECONDS:
            return float(VISIBILITY_HORIZON_SECONDS)
        return _seconds("the value error_visibility_timeout(retries, exc) returned", seconds)

    return rule


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """A callable for `error_visibility_timeout`: `base * 2 ** retries` seconds, at most `maximum`.

    With `jitter` (the default) the delay is between half of that and all of it, so that messages that failed
    together are spread.
    """

    base: float = 1
    maximum: float = 600
    jitter: bool = True

    def __call__(self, retries: int, exc: BaseException | None = None) -> float:  # noqa: ARG002
        """Seconds to hide a message after `retries` earlier failures."""
        # 2 ** 64 is beyond any maximum, and can still be multiplied as a float.
        seconds = min(self.maximum, self.base * 2.0 ** min(retries, 64))
        return random.uniform(seconds / 2, seconds) if self.jitter else seconds  # noqa: S311


def parse_delay(name: str, value: Any) -> DelayRule | None:
    """Parse a setting: `None`, seconds, a sequence of seconds, or `callable(retries, exc)`.

    Raises:
        ValueError: names the setting, the value and what is expected.
    """
    if value is None:
        return None
    if callable(value):
        return checked(_two_arguments(name, value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value:
            raise ValueError(f"expected {name} to hold at least one number of seconds, got {value!r}")
        return by_attempt(*(_seconds(f"{name}[{i}]", item) for i, item in enumerate(value)))
    return by_attempt(_seconds(name, value))


def _two_arguments(name: str, function: Callable[..., Any]) -> Callable[[int, BaseException], Any]:
    try:
        inspect.signature(function).bind(0, Exception())
    except ValueError:  # a builtin without a signature
        return function
    except TypeError as error:
        raise ValueError(
            f"expected {name} to take two arguments, (retries, exc), got {function!r}: {error}"
        ) from None
    return function


def _seconds(name: str, value: Any) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"expected {name} to be seconds, a list of seconds or a callable(retries, exc), got {value!r}"
        )
    if not 0 <= value <= VISIBILITY_HORIZON_SECONDS:
        raise ValueError(
            f"expected {name} to be between 0 and {VISIBILITY_HORIZON_SECONDS} seconds (12 hours), "
            f"got {value!r}"
        )
    return value  # type: ignore[no-any-return]


def retry_after(exc: BaseException) -> float | None:
    """Read the exception's attribute `retry_after`: seconds, also as text, or a timedelta."""
    try:
        value = getattr(exc, "retry_after", None)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        seconds = math.nan if value is None or isinstance(value, bool) else float(value)
    except Exception:  # noqa: BLE001 - a user's attribute must not replace the user's error
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


#: Celery's `Task.default_retry_delay`, for `self.retry()` where no rule applies.
CELERY_RETRY_DELAY_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class DelayRules:
    """The settings that may apply to a task's failures, in order of precedence.

    Attributes:
        task: the task's `error_visibility_timeout`.
        queue: kombu's `backoff_policy` of the task's queue, if that names the task.
        backoff: Celery's `retry_backoff`, if set.
        retry_delay: the task's own `default_retry_delay`, if it sets one.
        fallback: the transport option `error_visibility_timeout`.
    """

    task: DelayRule | None = None
    queue: DelayRule | None = None
    backoff: DelayRule | None = None
    retry_delay: float | None = None
    fallback: DelayRule | None = None


def choose_delay(
    rules: DelayRules,
    retries: int,
    exc: BaseException,
    *,
    explicit: bool,
    countdown: float | None = None,
    failed: Callable[[], object] = lambda: None,
) -> float | None:
    """Choose how many seconds to hide a failed message; `None` lets its visibility timeout run out.

    Args:
        rules: of the task and the transport.
        retries: the number of earlier failures.
        exc: what the run raised.
        explicit: whether the task called `self.retry()`.
        countdown: the seconds that it gave there.
        failed: called in the `except` block of a user's callable that raised; the next rule decides then.
    """
    if countdown is not None:
        return max(0.0, countdown)
    asked = retry_after(exc)
    if asked is not None:
        return asked
    retry_delay = None if rules.retry_delay is None else by_attempt(rules.retry_delay)
    for rule in (rules.task, rules.queue, rules.backoff, retry_delay, rules.fallback):
        try:
            delay = rule(retries, exc) if rule else None
        except Exception:  # noqa: BLE001 - a user's callable may raise anything; `failed` logs it
            failed()
        else:
            if delay is not None:
                return delay
    return CELERY_RETRY_DELAY_SECONDS if explicit else None


def whole_seconds(delay: float) -> int:
    """Round the delay up to whole seconds, which SQS requires."""
    return math.ceil(delay)
