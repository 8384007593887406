"""States that a run stores before it is over. In the pool's child.

Celery stores how a run ended after the run (celery/app/trace.py: `handle_retry`). For a run whose successor
was already sent, that is too late: another process may have stored the successor's SUCCESS meanwhile, and
RETRY would overwrite it.
"""

from __future__ import annotations

import logging
from traceback import format_exception
from typing import Any

from celery import states

from celery_sqs_visibility.task.context import DeliveryContext

logger = logging.getLogger(__name__)


def store_state(
    task: Any, request: DeliveryContext, result: Any, state: str, traceback: str | None = None
) -> None:
    """Store a state, unless the result is ignored. A failure is logged, and the run goes on."""
    ignored = request.ignore_result or task.ignore_result
    if ignored and not (state == states.RETRY and task.store_errors_even_if_ignored):
        return
    try:
        task.backend.store_result(request.id, result, state, traceback=traceback, request=request)
    except Exception:
        logger.exception(
            "state %s of task %s[%s] could not be stored; the run goes on", state, task.name, request.id
        )


def store_retry(task: Any, request: DeliveryContext, exc: Any) -> None:
    """Store RETRY before the successor of a run is sent, instead of afterwards."""
    error = exc if isinstance(exc, BaseException) else None
    store_state(task, request, error, states.RETRY, "".join(format_exception(error)) if error else None)
    request.visibility_retry_stored = True
