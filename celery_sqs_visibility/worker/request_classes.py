"""The classes of a worker's requests: one for each task, put together of what that task uses.

So a message is not asked for what its task does not use. As Celery does (celery/worker/request.py:
`create_request_cls`), a class takes some of its task's settings as they are when the worker binds it.
"""

from __future__ import annotations

from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.worker.batches import BatchedRequest, has_own_strategy
from celery_sqs_visibility.worker.exclusive_request import ExclusiveRequest
from celery_sqs_visibility.worker.overdue_request import WatchedRequest
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest
from celery_sqs_visibility.worker.worker_context import WorkerContext


def bind_request_class(task: Any, worker: WorkerContext) -> None:
    """Have a task's requests settle their deliveries; a Request class of the user's is mixed with ours."""
    theirs = symbol_by_name(task.Request)
    bound = vars(theirs)
    if bound.get("worker") is worker:
        return
    if isinstance(bound.get("worker"), WorkerContext):  # made here, for a worker before this one
        theirs = bound["made_of"]
    ours = VisibilityRequest if isinstance(task, VisibilityTask) else DeliveryRequest
    if issubclass(ours, theirs):
        base: tuple[type, ...] = (ours,)
    else:
        base = (theirs,) if issubclass(theirs, ours) else (theirs, ours)
    on_lost = getattr(task, "on_lost", None) or worker.on_lost
    task.Request = type(
        theirs.__name__,
        (*_features_of(task), *base),
        {
            "made_of": theirs,
            "worker": worker,
            "is_early": not task.acks_late,
            "ends_when_lost": on_lost == "terminate",
        },
    )


def _features_of(task: Any) -> list[type]:
    """What is mixed into the class of a task that uses it."""
    features: list[type] = [BatchedRequest] if has_own_strategy(task) else []
    if isinstance(task, VisibilityTask):
        features += [ExclusiveRequest] if task.exclusive else []
        features += [WatchedRequest] if task.inactivity_timeout is not None else []
    return features
