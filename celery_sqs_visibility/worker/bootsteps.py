"""A worker's first bootstep: what of Celery has to know that it consumes from SQS.

Imported in workers of our transport only, see `worker`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from celery import bootsteps, signals
from celery.app.task import Task
from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed
from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.delivery.lease_table import open_lease_table
from celery_sqs_visibility.signals import send_signals
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.pool_patches import keep_what_was_sent, release_in_turn, slots_of, watched
from celery_sqs_visibility.worker.rate_limits import RateLimits
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.startup import QueuesFirst
from celery_sqs_visibility.worker.validation import vet
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest


class Deliveries(bootsteps.StartStopStep):
    """Ties the fate of tasks to the fate of their deliveries, before the consumer starts.

    Tasks with Celery's own Request class get one that settles straight (`request.DeliveryRequest`), with the
    same behaviour. Messages that Celery's consumer cannot make a task of are kept, where Celery deletes them
    (celery/worker/consumer/consumer.py: `on_unknown_message`, `on_unknown_task`, `on_invalid_task`,
    `on_decode_error`); and those that would harm it are not given to it (`create_task_handler`).
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Whether the consumer is on our transport."""
        return isinstance(parent.conninfo.transport, Transport)

    def create(self, c: Any) -> None:
        """Prepare the worker, which is being made and has not forked yet: children inherit the board."""
        open_lease_table()
        send_signals()
        for task in c.app.tasks.values():
            _give_request_class(task)
        # Prefork alone has a semaphore, and processes.
        processes = bool(c.pool.uses_semaphore)
        c.pool.apply_async = watched(c.pool, processes=processes)
        if c.controller.semaphore is not None:
            release_in_turn(c.controller)
        with c.app.connection_for_read() as connection:
            connection.transport.broker.slots = partial(slots_of, c)
            connection.transport.broker.worker_name = c.hostname
        DeliveryRequest.pool, DeliveryRequest.pool_has_processes = c.pool, processes
        RateLimits(c)
        c.connect = QueuesFirst(c, c.connect)
        self._consumer = c
        c.on_unknown_message = self._on_unknown_message
        c.on_unknown_task = self._on_unknown_task
        c.on_invalid_task = self._on_invalid_task
        c.on_decode_error = self._on_decode_error
        c.create_task_handler = self._vetting(c.create_task_handler)

    def start(self, c: Any) -> None:
        """Be ready for children that want more time, and for what they say late."""
        DeliveryRequest.hub = None
        if c.pool.uses_semaphore:
            keep_what_was_sent(c.pool)
            DeliveryRequest.hub = c.hub
        if c.hub is not None:
            seats = open_lease_table()
            c.hub.add_reader(seats.fileno(), seats.on_readable)

    def _vetting(self, create_task_handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(create_task_handler)
        def create_vetting(*args: Any, **kwargs: Any) -> Callable[[Message], object]:
            handle = create_task_handler(*args, **kwargs)

            def on_task_received(message: Message) -> object:
                return handle(message) if self._is_fit(message) else None

            return on_task_received

        return create_vetting

    def _is_fit(self, message: Message) -> bool:
        """Whether Celery may have it; otherwise it is refused. Main thread."""
        try:
            vet(message, self._consumer.strategies)
        except (InvalidTaskError, ContentDisallowed) as exc:
            self._on_invalid_task(None, message, exc)
        except Exception as exc:  # noqa: BLE001 - decoders may raise anything
            self._on_decode_error(message, exc)
        else:
            return True
        return False

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
    """Have its requests settle their deliveries; a Request class of the user's is mixed with ours."""
    ours = VisibilityRequest if isinstance(task, VisibilityTask) else DeliveryRequest
    theirs = symbol_by_name(task.Request)
    if issubclass(ours, theirs):
        task.Request = ours
    elif not issubclass(theirs, ours):
        task.Request = type(theirs.__name__, (theirs, ours), {})
