"""What a Celery worker on this transport gets without being asked: the transport, and one bootstep.

kombu's alias leads here (`celery_sqs_visibility.Transport`), so this module is imported before the worker's
blueprints are built (celery/worker/worker.py: `WorkController.setup_instance`), in workers of our transport
and in no others.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals
from celery.app.task import Task

from celery_sqs_visibility.channel import Message
from celery_sqs_visibility.transport import Transport

__all__ = ["Deliveries", "Transport"]


class Deliveries(bootsteps.Step):
    """Ties the fate of tasks to the fate of their deliveries, before the consumer starts.

    Tasks with Celery's own Request class get one that settles straight (`request.DeliveryRequest`), with the
    same behaviour. Messages that Celery's consumer cannot make a task of are kept, where Celery deletes them
    (celery/worker/consumer/consumer.py: `on_unknown_message`, `on_unknown_task`, `on_invalid_task`,
    `on_decode_error`).
    """

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        for task in c.app.tasks.values():
            if task.Request == Task.Request:
                task.Request = "celery_sqs_visibility.request:DeliveryRequest"
        self._consumer = c
        c.on_unknown_message = self._on_unknown_message
        c.on_unknown_task = self._on_unknown_task
        c.on_invalid_task = self._on_invalid_task
        c.on_decode_error = self._on_decode_error

    def _on_unknown_message(self, body: Any, message: Message) -> None:  # noqa: ARG002 - Celery's signature
        message.refuse("its headers name no task")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=None)

    def _on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        # No FAILURE is stored: in a rolling deploy another worker knows the task, or this one soon will.
        headers = message.headers
        name = headers.get("task")
        message.refuse(f"task {name!r} is not registered")
        signals.task_unknown.send(
            sender=self._consumer, message=message, exc=exc, name=name, id=headers.get("id")
        )

    def _on_invalid_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        message.refuse(f"its task is invalid: {exc}")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=exc)

    def _on_decode_error(self, message: Message, exc: Exception) -> None:
        message.refuse(f"its content cannot be decoded: {exc!r}")


@signals.worker_init.connect(weak=False)
def add_bootstep(sender: Any, **_: Any) -> None:
    """Add the bootstep to a worker whose broker we are. Main thread, before the blueprints are built."""
    if isinstance(sender.app.connection_for_read().transport, Transport):
        sender.app.steps["consumer"].add(Deliveries)
