"""A worker's tasks, bound to requests of ours; those too that are registered after its start.

Celery makes its requests' classes of `task.Request` at each of the worker's connections and at `pool_restart`
(celery/worker/consumer/consumer.py: `Consumer.update_strategies`). What is registered later has no strategy,
and is unknown until then.
"""

from __future__ import annotations

from typing import Any, Final

from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger

from celery_sqs_visibility.task.settings import refuse_on_other_tasks
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.batches import has_own_strategy, with_batches
from celery_sqs_visibility.worker.event_tasks import take_events
from celery_sqs_visibility.worker.exclusive_request import open_key_leases
from celery_sqs_visibility.worker.request_classes import bind_request_class
from celery_sqs_visibility.worker.worker_context import WorkerContext

logger = get_logger(__name__)

NOT_RUN: Final = "a task that was registered after the worker's start is not run, and its messages wait: %s"

NO_EVENTS: Final = (
    "task %r was registered after the worker's start, and takes events of AWS from its next start on"
)


class BoundTasks:
    """Stands before a consumer's `update_strategies`. Celery's main thread.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
        worker: what the requests know of it.
        context: what the worker's connections share.
    """

    def __init__(self, consumer: Any, worker: WorkerContext, context: BrokerContext) -> None:
        self._consumer = consumer
        self._worker = worker
        self._context = context
        self._bound: set[Any] = set()
        self._refused: set[str] = set()
        self._update_strategies = consumer.update_strategies
        worker.on_lost = context.options.on_lost

    def bind(self) -> None:
        """Bind all tasks, before the worker consumes, and from now on those that come later.

        Raises:
            ImproperlyConfigured: a task cannot be run as it says.
        """
        tasks = self._consumer.app.tasks.values()
        refuse_on_other_tasks(tasks)
        take_events(self._consumer.app, self._context)
        self._open_keys(tasks)
        self._bind(tasks)
        self._consumer.update_strategies = self.update_strategies

    def update_strategies(self) -> None:
        """Have requests of all tasks settle their deliveries. A task that cannot be run stays unknown."""
        tasks = self._consumer.app.tasks
        for task in [task for task in tasks.values() if task not in self._bound]:
            self._admit(task)
        self._update_strategies()
        for name in self._refused:
            self._consumer.strategies.pop(name, None)

    def _admit(self, task: Any) -> None:
        try:
            refuse_on_other_tasks([task])
            self._open_keys([task])
        except ImproperlyConfigured as error:
            if task.name not in self._refused:
                logger.error(NOT_RUN, error)  # noqa: TRY400 - the error's text says all
            self._refused.add(task.name)
            return
        self._refused.discard(task.name)
        if getattr(task, "sqs_event", None):
            logger.error(NO_EVENTS, task.name)
        self._bind([task])

    def _bind(self, tasks: Any) -> None:
        for task in tasks:
            bind_request_class(task, self._worker)
            if has_own_strategy(task) and not self._worker.collects:
                self._worker.collects = True
                pool = self._consumer.pool
                pool.apply_async = with_batches(pool.apply_async, processes=self._worker.has_processes)
            self._bound.add(task)

    def _open_keys(self, tasks: Any) -> None:
        if self._worker.key_leases is not None:
            return
        self._worker.key_leases = key_leases = open_key_leases(self._context, tasks)
        if key_leases is not None:
            key_leases.start()
            self._context.release_keys = key_leases.release_all
