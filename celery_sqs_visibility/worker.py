"""What a Celery worker on this transport gets without being asked: the transport, and one bootstep.

kombu's alias leads here (`celery_sqs_visibility.Transport`), so this module is imported before the worker's
blueprints are built (celery/worker/worker.py: `WorkController.setup_instance`), in workers of our transport
and in no others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps, signals
from celery.app.task import Task
from celery.exceptions import ImproperlyConfigured
from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.channel import Message
from celery_sqs_visibility.shutdown import drain_at_shutdown
from celery_sqs_visibility.task import VisibilityTask
from celery_sqs_visibility.transport import Transport

__all__ = ["Deliveries", "Transport"]


class Deliveries(bootsteps.StartStopStep):
    """Ties the fate of tasks to the fate of their deliveries, before the consumer starts.

    Tasks with Celery's own Request class get one that settles straight (`request.DeliveryRequest`), with the
    same behaviour. Messages that Celery's consumer cannot make a task of are kept, where Celery deletes them
    (celery/worker/consumer/consumer.py: `on_unknown_message`, `on_unknown_task`, `on_invalid_task`,
    `on_decode_error`).
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        for task in c.app.tasks.values():
            _give_request_class(task)
        c.pool.apply_async = _telling_lost_runs(c.pool.apply_async)
        ours = symbol_by_name("celery_sqs_visibility.request:DeliveryRequest")
        ours.pool_has_processes = c.pool.uses_semaphore  # which is so in prefork alone
        self._consumer = c
        c.on_unknown_message = self._on_unknown_message
        c.on_unknown_task = self._on_unknown_task
        c.on_invalid_task = self._on_invalid_task
        c.on_decode_error = self._on_decode_error

    def start(self, c: Any) -> None:
        """Be ready for the end."""
        drain_at_shutdown(c)

    def _on_unknown_message(self, body: Any, message: Message) -> None:  # noqa: ARG002 - Celery's signature
        message.refuse("its headers name no task")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=None)

    def _on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        # No FAILURE is stored: in a rolling deploy another worker knows the task, or this one soon will.
        headers = message.headers
        name = headers.get("task")
        message.refuse(f"task {name!r} is not registered", others_may=True)
        signals.task_unknown.send(
            sender=self._consumer, message=message, exc=exc, name=name, id=headers.get("id")
        )

    def _on_invalid_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        message.refuse(f"its task is invalid: {exc}")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=exc)

    def _on_decode_error(self, message: Message, exc: Exception) -> None:
        message.refuse(f"its content cannot be decoded: {exc!r}")


def _give_request_class(task: Task) -> None:
    """Tasks with Celery's own get ours; the user's own must not take a VisibilityTask's visibility away."""
    if task.Request == Task.Request:
        task.Request = "celery_sqs_visibility.request:DeliveryRequest"
    elif isinstance(task, VisibilityTask):
        request_class = symbol_by_name(task.Request)
        ours = symbol_by_name(VisibilityTask.Request)
        if not issubclass(request_class, ours):
            raise ImproperlyConfigured(
                f"task {task.name!r} has Request={task.Request!r}, which is no {ours.__name__}: its failures "
                f"could not hide its message; derive it from {ours.__module__}.{ours.__name__}"
            )


def _telling_lost_runs(apply_async: Callable[..., Any]) -> Callable[..., Any]:
    """A pool's `apply_async` that tells of runs which ended with a BaseException.

    Pools without processes hand those to the callback for successes (celery/concurrency/base.py:
    `apply_target`), which cannot take them: the message would never be settled, and be extended for 12 hours.
    """

    @wraps(apply_async)
    def telling(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        on_success = options.get("callback")
        on_error = options.get("error_callback")

        def on_result(result: Any, *more: Any, **named: Any) -> Any:
            if isinstance(result, ExceptionInfo) and on_error is not None:
                return on_error(result)
            return on_success(result, *more, **named) if on_success is not None else None

        return apply_async(target, args, kwargs or {}, **{**options, "callback": on_result})

    return telling


@signals.worker_init.connect(weak=False)
def add_bootstep(sender: Any, **_: Any) -> None:
    """Add the bootstep to a worker whose broker we are. Main thread, before the blueprints are built."""
    if isinstance(sender.app.connection_for_read().transport, Transport):
        sender.app.steps["consumer"].add(Deliveries)
