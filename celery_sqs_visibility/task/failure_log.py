"""The log line, with traceback, of a failed attempt that is retried.

Written in the pool's child or, if the child is gone, in the worker's main process. Celery's own line for a
retry is at INFO and has no traceback.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Final

from celery.exceptions import Retry
from kombu.utils.encoding import safe_repr

from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.message_limits import truncated
from celery_sqs_visibility.policy.printable import printable
from celery_sqs_visibility.policy.retries import attempts_allowed
from celery_sqs_visibility.task.context import DeliveryContext, sqs_delivery
from celery_sqs_visibility.task.retries import RetryDecisions

logger = logging.getLogger(__name__)

FAILED: Final = "Task %(name)s[%(id)s] failed at attempt %(attempt)s and comes back %(when)s: %(exc)s"

#: Characters of the exception in the line; the traceback has all of it.
EXCEPTION_CHARACTERS: Final = 200

#: The facts of the delivery that are fields of the record.
DELIVERY_FIELDS: Final = ("queue", "message_id", "receive_count")


def log_failed_attempt(
    task: RetryDecisions[..., Any],
    request: DeliveryContext,
    retry: Retry,
    exc: BaseException,
    *,
    traceback: TracebackType | None = None,
) -> None:
    """Log that a run failed with `exc`, and when it is retried.

    A WARNING with the traceback, if any; INFO without it for an exception in the task's `throws`.
    """
    expected = bool(task.throws) and isinstance(exc, task.throws)  # a tuple, or one class
    name = request.shadow or task.name
    error = truncated(printable(safe_repr(exc)), EXCEPTION_CHARACTERS)
    told = {
        "name": printable(str(name)),
        "id": printable(str(request.id)),
        "attempt": attempt_of(task, request),
        "when": retry.humanize(),
        "exc": error,
    }
    sqs = sqs_delivery(request)
    facts: dict[str, object] = {field: sqs.get(field) for field in DELIVERY_FIELDS}
    facts |= {"task": name, "task_id": request.id, "attempt": request.retries + 1, "error": error}
    log_safely(
        logger.info if expected else logger.warning,
        FAILED,
        told,
        exc_info=None if expected or traceback is None else (type(exc), exc, traceback),
        extra={"data": told, "sqs": facts},  # Celery's own lines have `data`
    )


def attempt_of(task: RetryDecisions[..., Any], request: DeliveryContext) -> str:
    """The number of the attempt, such as "2", or "2 of 4" with a limit."""
    given, sqs = request.visibility_given_limit, sqs_delivery(request)
    limit = task.limit_of(request) if given is None else given
    most = attempts_allowed(request.retries, limit, sqs["receive_count"], sqs["max_receive_count"])
    attempt = request.retries + 1
    return str(attempt) if most is None or most < attempt else f"{attempt} of {most}"


def exception_behind(retry: Retry) -> BaseException | None:
    """The exception for which a task is retried; `None` for a task that only polls."""
    causes = (retry.__cause__, retry.exc, retry.__context__)
    return next((cause for cause in causes if isinstance(cause, BaseException)), None)


def traceback_of(exc: BaseException) -> TracebackType | None:
    """An exception's traceback, without our frames at its beginning."""
    traceback = exc.__traceback__
    while traceback is not None and traceback.tb_next is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def forget_tracebacks(exc: Any) -> None:
    """Drop the tracebacks of a recorded exception and its causes.

    Their frames keep the run's variables in reference cycles, which only a full garbage collection frees.
    """
    if not isinstance(exc, BaseException) or exc.__traceback__ is None:
        return
    exc.__traceback__ = None
    for behind in (exc.__cause__, exc.__context__, getattr(exc, "exc", None), getattr(exc, "reason", None)):
        forget_tracebacks(behind)


def _is_ours(traceback: TracebackType) -> bool:
    module: str = traceback.tb_frame.f_globals.get("__name__", "")
    return module.startswith("celery_sqs_visibility.task.")
