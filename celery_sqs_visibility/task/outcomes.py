"""How a run of a `VisibilityTask` ends: it fails for good, its message comes back, or another is published.

Called in the thread of the run. Only runs need this module: a process that only publishes does not import it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from celery.exceptions import Ignore, MaxRetriesExceededError, QueueNotFound, Reject, Retry
from celery.utils.time import maybe_make_aware

from celery_sqs_visibility.contacts.app import forget_given_limit
from celery_sqs_visibility.errors import PublishError, QueueDoesNotExistError, UnroutableError
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.retries import End, comes_back_after
from celery_sqs_visibility.task import successors
from celery_sqs_visibility.task.context import (
    CHORD_UNLOCK,
    LIMIT_HEADER,
    is_delivery,
    is_from_fifo,
    message_group,
    own_queue,
    sqs_delivery,
)
from celery_sqs_visibility.task.retries import VisibilityRetry, horizon_left
from celery_sqs_visibility.task.successors import free_key, prepare_for_successor

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


def on_run_failed(task: Any, exc: Exception) -> NoReturn:
    """Raise the outcome of a run that raised `exc`: a `VisibilityRetry` if the message comes back."""
    if exc is task.request.visibility_final:
        raise exc
    given = task.given_retry_kwargs
    if given.keys() - {"countdown", "max_retries"} and task.comes_back(exc):
        raise task.retry(exc=exc, **given)
    _end(task, End.FAILED, exc, given.get("countdown"), task.retry_limit)


def retry(
    task: Any, exc: Any, countdown: float | None, eta: datetime | None, changes: dict[str, Any]
) -> Retry:
    """End the run for `VisibilityTask.retry`; `changes` are its other arguments."""
    exc = _as_raised(exc)
    limit = task.request.visibility_given_limit = changes["max_retries"]
    countdown = _seconds_until(task, eta) if countdown is None else countdown
    if _needs_a_message(task, countdown, changes):
        return _retry_by_publishing(task, exc, countdown, eta, changes)
    return _retry_by_hiding(task, exc, countdown, task.max_retries if limit is None else limit)


def replace(task: Any, celerys: Callable[[Any], Any], sig: Any) -> Any:
    """Call Celery's `replace`. Frees the key of an exclusive task for its replacement."""
    await_successor(task, by_root=True)
    free_key(task.request)
    try:
        return celerys(sig)
    except Ignore as replaced:
        require_successor(task, replaced)
        raise


def publish_continuation(task: Any, changes: dict[str, Any]) -> Retry:
    """Publish the continuation of a task. Returns the exception for its run to raise."""
    await_successor(task)
    return successors.publish_continuation(task, changes)


def await_successor(task: Any, *, by_root: bool = False) -> None:
    """From now on, track whether a successor of the run is published: see `successors`.

    Raises:
        Reject: the message is lost. Another worker runs the task, and publishes the successor.
    """
    if is_delivery(task) and not task.app.conf.task_always_eager:
        if task.visibility.lost:
            raise Reject("lost", requeue=True)
        successors.await_successor(task.request, by_root=by_root)


def require_successor(task: Any, ended: Any) -> None:
    """Raise if the run ends with `ended`, but its awaited successor was not published.

    Raises:
        VisibilityRetry: lets the message come back.
        Exception: that of `self.retry()`, or a `PublishError`, if this was the last attempt.
    """
    request = task.request
    if request.visibility_successor is not False:
        return
    if task.may_say_unpublished:
        task.may_say_unpublished = False
        logger.warning(UNPUBLISHED, task.name)
    given = request.visibility_given_limit
    exc = getattr(ended, "exc", None) or PublishError([(request.id, RuntimeError(NOT_SENT))], 1)
    limit = task.limit_of(request) if given is None else given
    _end(task, End.RETRIED, exc, _seconds_until(task, getattr(ended, "when", None)), limit)


def _needs_a_message(task: Any, countdown: float | None, changes: dict[str, Any]) -> bool:
    """Returns whether a retry needs a new message."""
    if task.name == CHORD_UNLOCK or not changes["throw"]:
        return True  # that task polls: its receives would use up the queue's `maxReceiveCount`
    request = task.request
    same = {"throw": True, "max_retries": changes["max_retries"], "queue": sqs_delivery(request)["queue"]}
    asked = any(v is not None and (name not in same or v != same[name]) for name, v in changes.items())
    return asked or (countdown is not None and countdown > horizon_left(request))


def _seconds_until(task: Any, when: Any) -> float | None:
    """Seconds until an instant; seconds and `None` are returned as they are."""
    if not isinstance(when, datetime):
        return when  # type: ignore[no-any-return]
    return (maybe_make_aware(when, task.app.timezone) - datetime.now(UTC)).total_seconds()


def _retry_by_hiding(task: Any, exc: Any, countdown: float | None, limit: int | None) -> Retry:
    """Retry with the message itself, hidden for the delay.

    A hidden message can't carry a `limit` above the task's own. So the retry that leads to the task's own
    last attempt is published with that limit; not in a FIFO queue, where it would lose its place.
    """
    request = task.request
    known = task.limit_of(request)
    is_higher = limit is not None and known is not None and limit > known and request.retries + 1 >= known
    if is_higher and not is_from_fifo(request) and not task.is_last_attempt(request, limit):
        delay = task.delay_after(request, exc or _exhausted(task), countdown, explicit=True)
        with suppress(VisibilityRetry):  # it could not be published, and hiding needs no request of ours
            return _retry_by_publishing(task, exc, delay, None, {"max_retries": limit})
    return _end(task, End.RETRIED, exc, countdown, limit)


def _end(task: Any, end: End, exc: Any, countdown: float | None, limit: int | None) -> NoReturn:
    """Raise the outcome: a `VisibilityRetry`, or the exception with which the task fails for good."""
    request = task.request
    current = sys.exc_info()[1]
    cause = exc if isinstance(exc, BaseException) else current
    explicit = end is End.RETRIED
    retried = explicit or task.comes_back(exc)
    comes_back = comes_back_after(end, retried=retried, last=task.is_last_attempt(request, limit))
    if not (comes_back or task.is_forgiven(request, cause)):
        request.visibility_final = exc if isinstance(exc, BaseException) else _exhausted(task)
        raise request.visibility_final
    delay = task.wanted_delay(request, cause or _exhausted(task), countdown, explicit=explicit)
    if delay is not None and _outlasts_hiding(task, delay, explicit=explicit):
        changed = None if limit == task.max_retries else limit
        raise _retry_by_publishing(task, exc, delay, None, {"max_retries": changed})
    delay = None if delay is None else min(delay, horizon_left(request))
    raise VisibilityRetry(None, exc if exc is not None else current, delay) from cause


def _outlasts_hiding(task: Any, delay: float, *, explicit: bool) -> bool:
    """Returns whether to publish the retry, because SQS can't hide a message for that long.

    In a FIFO queue only if the task called `self.retry()`, because the message loses its place. Never again
    in a run whose successor was not published.
    """
    if delay <= VISIBILITY_HORIZON_SECONDS or task.request.visibility_successor is not None:
        return False
    return explicit or not is_from_fifo(task.request)


def _exhausted(task: Any) -> MaxRetriesExceededError:
    request = task.request
    return MaxRetriesExceededError(
        f"Can't retry {task.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
        task_args=request.args,
        task_kwargs=request.kwargs,
    )


def _retry_by_publishing(
    task: Any, exc: Any, countdown: float | None, eta: datetime | None, given: dict[str, Any]
) -> Retry:
    """Retry as Celery does, but keep the message group and the given limit, which Celery drops."""
    request = task.request
    goes_elsewhere = any(given.get(name) for name in ("queue", "exchange", "routing_key"))
    options = {**message_group(request), **({} if goes_elsewhere else own_queue(request)), **given}
    if given["max_retries"] is not None:
        headers = options.get("headers") or request.headers or {}
        options["headers"] = {**headers, LIMIT_HEADER: given["max_retries"]}
    limit = task.max_retries if given["max_retries"] is None else given["max_retries"]
    await_successor(task)
    if given.get("throw", True) and (limit is None or request.retries < limit):
        prepare_for_successor(task, exc)  # otherwise nothing is published
    try:
        return task.retry_as_celery(exc=exc, countdown=countdown, eta=eta, **options)  # type: ignore[no-any-return]
    except Retry:
        raise
    except Reject as failure:
        # Celery could not publish the retry, and would delete the message.
        rejected: Any = failure
        reason = rejected.reason if isinstance(rejected.reason, BaseException) else failure
        if goes_elsewhere and isinstance(reason, NO_QUEUE):
            request.visibility_final = reason
            raise reason from exc
        delay = task.delay_after(request, reason, countdown, explicit=True)
        raise VisibilityRetry(None, reason, delay) from failure
    except Exception as final:
        if final is exc or isinstance(final, task.MaxRetriesExceededError):
            request.visibility_final = final
        raise
    finally:
        forget_given_limit(task)


def _as_raised(exc: Any) -> Any:
    """The exception that a task gave to `self.retry()`; a class is called, as `raise` does."""
    if isinstance(exc, type) and issubclass(exc, BaseException):
        with suppress(TypeError):  # it takes arguments
            return exc()
    return exc
