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
from celery.exceptions import TaskRevokedError
from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.channel import Message
from celery_sqs_visibility.delivery.deadletters import DeadLetters
from celery_sqs_visibility.delivery.leases import open_board
from celery_sqs_visibility.shutdown import drain_at_shutdown
from celery_sqs_visibility.signals import send_signals
from celery_sqs_visibility.start import QueuesFirst
from celery_sqs_visibility.task import VisibilityTask
from celery_sqs_visibility.transport import Transport

__all__ = ["Deliveries", "Transport"]


DELIVERY_REQUEST = "celery_sqs_visibility.request:DeliveryRequest"
VISIBILITY_REQUEST = "celery_sqs_visibility.visibility_request:VisibilityRequest"


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
        # Prefork alone has a semaphore, and processes.
        processes = bool(c.pool.uses_semaphore)
        c.pool.apply_async = _watched(c.pool.apply_async, processes=processes)
        request = symbol_by_name(DELIVERY_REQUEST)
        request.pool, request.pool_has_processes = c.pool, processes
        c.connect = QueuesFirst(c, c.connect)
        DeadLetters.worker = c.hostname
        self._consumer = c
        c.on_unknown_message = self._on_unknown_message
        c.on_unknown_task = self._on_unknown_task
        c.on_invalid_task = self._on_invalid_task
        c.on_decode_error = self._on_decode_error

    def start(self, c: Any) -> None:
        """Be ready for the end, and for children that want more time."""
        drain_at_shutdown(c)
        if c.hub is not None:
            seats = open_board()
            c.hub.add_reader(seats.fileno(), seats.on_readable)

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
    ours = symbol_by_name(VISIBILITY_REQUEST if isinstance(task, VisibilityTask) else DELIVERY_REQUEST)
    theirs = symbol_by_name(task.Request)
    if issubclass(ours, theirs):
        task.Request = ours
    elif not issubclass(theirs, ours):
        task.Request = type(theirs.__name__, (theirs, ours), {})


def _watched(apply_async: Callable[..., Any], *, processes: bool) -> Callable[..., Any]:
    """A pool's `apply_async` that keeps a run from beginning too late, and from ending unheard of.

    Pools without processes lose a run that raises out of Celery's tracer, and hand one that ended with a
    BaseException to the callback for successes, which cannot take it (celery/concurrency/base.py:
    `apply_target`): the message would never be settled, and be extended for 12 hours.
    """
    ours = symbol_by_name(DELIVERY_REQUEST)

    @wraps(apply_async)
    def watched(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        on_success = options.get("callback")
        on_error = options.get("error_callback")
        request = getattr(options.get("accept_callback"), "__self__", None)
        if processes and isinstance(request, ours) and not request.dispatch():
            raise TaskRevokedError(request.id)

        def on_result(result: Any, *more: Any, **named: Any) -> Any:
            if isinstance(result, ExceptionInfo) and on_error is not None:
                return on_error(result)
            return on_success(result, *more, **named) if on_success is not None else None

        if processes:
            return apply_async(target, args, kwargs or {}, **options)
        return apply_async(_heard(target), args, kwargs or {}, **{**options, "callback": on_result})

    return watched


def _heard(target: Callable[..., Any]) -> Callable[..., Any]:
    """What a pool runs, but an exception out of it is a result."""

    @wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - told to the request, as a process pool would
            return ExceptionInfo()

    return run


@signals.worker_init.connect(weak=False)
def add_bootstep(sender: Any, **_: Any) -> None:
    """Add the bootstep to a worker whose broker we are. Main thread, before the blueprints are built.

    The pool's children inherit the board.
    """
    if isinstance(sender.app.connection_for_read().transport, Transport):
        open_board()
        send_signals()
        sender.app.steps["consumer"].add(Deliveries)
