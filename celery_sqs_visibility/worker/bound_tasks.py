"""A worker's tasks, bound to our requests: a class of requests for each task.

The class is composed of the features that the task uses, so that a message doesn't pay for others. Like
Celery (celery/worker/request.py: `create_request_cls`), it reads some of the task's settings only once, when
the worker binds it.

Celery makes its own classes of `task.Request` whenever the worker connects and at `pool_restart`
(celery/worker/consumer/consumer.py: `Consumer.update_strategies`). A task that is registered later has no
strategy, and is unknown until then.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger
from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.contacts.worker import replace_update_strategies
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.event_routes import MESSAGE, EventRoute, EventRoutes, parse_sqs_event
from celery_sqs_visibility.policy.option_parsers import CALLABLE, imported
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.settings import refuse_on_other_tasks
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.batches import BatchedRequest, has_own_strategy
from celery_sqs_visibility.worker.exclusive_request import ExclusiveRequest, open_key_leases, open_store
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest, WatchedRequest
from celery_sqs_visibility.worker.worker_context import WorkerContext

logger = get_logger(__name__)


class BoundTasks:
    """Binds a consumer's tasks to our requests, later tasks when Celery learns of them. Main thread."""

    def __init__(self, consumer: Any, worker: WorkerContext, context: BrokerContext) -> None:
        self._consumer = consumer
        self._worker = worker
        self._context = context
        self._bound: set[Any] = set()
        self._refused: set[str] = set()
        worker.when_lost = context.options.when_lost

    def bind(self) -> None:
        """Bind all tasks before the worker consumes, and later ones from now on.

        Raises:
            ImproperlyConfigured: a task can't run with its settings.
        """
        tasks = self._consumer.app.tasks.values()
        refuse_on_other_tasks(tasks)
        take_events(self._consumer.app, self._context)
        self._open_keys(tasks)
        self._open_brakes(tasks)
        self._bind(tasks)
        self._update_strategies = replace_update_strategies(self._consumer, self.update_strategies)

    def update_strategies(self) -> None:
        """Bind new tasks. A task that can't run stays unknown to Celery."""
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
            self._open_brakes([task])
        except ImproperlyConfigured as error:
            if task.name not in self._refused:
                logger.error(  # noqa: TRY400 - the error's text says all
                    "a task that was registered after the worker's start is not run, and its messages wait: "
                    "%s",
                    error,
                )
            self._refused.add(task.name)
            return
        self._refused.discard(task.name)
        if getattr(task, "sqs_event", None):
            logger.error(
                "task %r was registered after the worker's start, and takes events of AWS from its next "
                "start on",
                task.name,
            )
        self._bind([task])

    def _bind(self, tasks: Any) -> None:
        for task in tasks:
            bind_request_class(task, self._worker)
            self._worker.collects = self._worker.collects or has_own_strategy(task)
            self._bound.add(task)

    def _open_brakes(self, tasks: Any) -> None:
        braked = [task for task in tasks if isinstance(task, VisibilityTask) and task.brake_on]
        for task in braked:
            if has_own_strategy(task):
                sentence = (
                    f"task {task.name!r} has brake_on={task.brake_on!r}, and collects its messages itself: "
                    "none could wait. Remove brake_on"
                )
                raise shown_in_one_line(ImproperlyConfigured(sentence))
        if braked and self._worker.waiting is not None and self._worker.brakes is None:
            from celery_sqs_visibility.worker.brakes import Brakes  # noqa: PLC0415 - few workers have any

            self._worker.brakes = Brakes(self._worker.waiting, self._context, open_store(self._context))

    def _open_keys(self, tasks: Any) -> None:
        if self._worker.key_leases is not None:
            return
        self._worker.key_leases = key_leases = open_key_leases(self._context, tasks)
        if key_leases is not None:
            key_leases.start()
            self._context.release_keys = key_leases.release_all


def bind_request_class(task: Any, worker: WorkerContext) -> None:
    """Bind a task's requests to their deliveries. A user's own Request class is combined with ours."""
    theirs = symbol_by_name(task.Request)
    bound = vars(theirs)
    if bound.get("worker") is worker:
        return
    if isinstance(bound.get("worker"), WorkerContext):  # made here, for an earlier worker
        theirs = bound["made_of"]
    ours = VisibilityRequest if isinstance(task, VisibilityTask) else DeliveryRequest
    if issubclass(ours, theirs):
        base: tuple[type, ...] = (ours,)
    else:
        base = (theirs,) if issubclass(theirs, ours) else (theirs, ours)
    features: list[type] = [BatchedRequest] if has_own_strategy(task) else []
    if isinstance(task, VisibilityTask):
        features += [braked_requests()] if task.brake_on else []  # first: it must see every end
        features += [ExclusiveRequest] if task.exclusive else []
        features += [WatchedRequest] if task.inactivity_timeout is not None else []
    when_lost = getattr(task, "when_lost", None) or worker.when_lost
    task.Request = type(
        theirs.__name__,
        (*features, *base),
        {
            "made_of": theirs,
            "worker": worker,
            "is_early": not task.acks_late,
            "ends_when_lost": when_lost == "terminate",
        },
    )


def braked_requests() -> type:
    """The class that is mixed into requests of tasks with a brake. Imported only if there are any."""
    from celery_sqs_visibility.worker.braked_request import BrakedRequest  # noqa: PLC0415

    return BrakedRequest


def take_events(app: Celery[Any], context: BrokerContext) -> None:
    """Let the worker's receivers turn events into tasks, if a task takes events or there is an adapter.

    Raises:
        ImproperlyConfigured: two tasks take the same events, or the adapter can't be imported.
    """
    try:
        routes = EventRoutes(
            [
                EventRoute(pattern, task.name, per_message=task.sqs_event_per == MESSAGE)
                for task in app.tasks.values()
                if isinstance(task, VisibilityTask)
                for pattern in parse_sqs_event("sqs_event", task.sqs_event)
            ]
        )
        adapter = _adapter(context.options.message_adapter)
    except ValueError as error:
        raise shown_in_one_line(ImproperlyConfigured(str(error))) from None
    if not routes and adapter is None:
        return
    from celery_sqs_visibility.transport.event_messages import EventMessages  # noqa: PLC0415 - seldom needed

    decode = context.decode_message
    context.decode_for_worker = EventMessages(routes, adapter, decode, context.attribute_names).decode


def _adapter(path: str | None) -> Any:
    if path is None:
        return None
    adapter = imported("message_adapter", path, CALLABLE)
    if not callable(adapter):
        raise OptionError(f"expected message_adapter to be {CALLABLE}, got {path!r}, which is {adapter!r}")
    return adapter
