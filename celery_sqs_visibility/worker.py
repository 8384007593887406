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
from celery.exceptions import InvalidTaskError, TaskRevokedError
from kombu.exceptions import ContentDisallowed
from kombu.utils.imports import symbol_by_name

from celery_sqs_visibility.channel import Message
from celery_sqs_visibility.delivery.deadletters import DeadLetters
from celery_sqs_visibility.delivery.leases import open_board
from celery_sqs_visibility.delivery.model import Release
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.shutdown import drain_at_shutdown
from celery_sqs_visibility.signals import send_signals
from celery_sqs_visibility.start import QueuesFirst
from celery_sqs_visibility.task import VisibilityTask
from celery_sqs_visibility.transport import Transport
from celery_sqs_visibility.vetting import vet

__all__ = ["Deliveries", "Transport"]


DELIVERY_REQUEST = "celery_sqs_visibility.request:DeliveryRequest"
VISIBILITY_REQUEST = "celery_sqs_visibility.visibility_request:VisibilityRequest"


class Deliveries(bootsteps.StartStopStep):
    """Ties the fate of tasks to the fate of their deliveries, before the consumer starts.

    Tasks with Celery's own Request class get one that settles straight (`request.DeliveryRequest`), with the
    same behaviour. Messages that Celery's consumer cannot make a task of are kept, where Celery deletes them
    (celery/worker/consumer/consumer.py: `on_unknown_message`, `on_unknown_task`, `on_invalid_task`,
    `on_decode_error`); and those that would harm it are not given to it (`create_task_handler`).
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        for task in c.app.tasks.values():
            _give_request_class(task)
        # Prefork alone has a semaphore, and processes.
        processes = bool(c.pool.uses_semaphore)
        c.pool.apply_async = _watched(c.pool, processes=processes)
        with c.app.connection_for_read() as connection:
            connection.transport.broker.slots = lambda: Slots(c.pool.num_processes, c.initial_prefetch_count)
        request = symbol_by_name(DELIVERY_REQUEST)
        request.pool, request.pool_has_processes = c.pool, processes
        c.connect = QueuesFirst(c, c.connect)
        DeadLetters.worker = c.hostname
        self._consumer = c
        c.on_unknown_message = self._on_unknown_message
        c.on_unknown_task = self._on_unknown_task
        c.on_invalid_task = self._on_invalid_task
        c.on_decode_error = self._on_decode_error
        c.create_task_handler = self._vetting(c.create_task_handler)

    def start(self, c: Any) -> None:
        """Be ready for the end, and for children that want more time."""
        drain_at_shutdown(c)
        if c.pool.uses_semaphore:
            _keep_what_was_sent(c.pool)
        if c.hub is not None:
            seats = open_board()
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
    ours = symbol_by_name(VISIBILITY_REQUEST if isinstance(task, VisibilityTask) else DELIVERY_REQUEST)
    theirs = symbol_by_name(task.Request)
    if issubclass(ours, theirs):
        task.Request = ours
    elif not issubclass(theirs, ours):
        task.Request = type(theirs.__name__, (theirs, ours), {})


def _watched(pool: Any, *, processes: bool) -> Callable[..., Any]:
    """A pool's `apply_async` that keeps a run from beginning too late, and from ending unheard of.

    Pools without processes lose a run that raises out of Celery's tracer, and hand one that ended with a
    BaseException to the callback for successes, which cannot take it (celery/concurrency/base.py:
    `apply_target`): the message would never be settled, and be extended for 12 hours. A pool with processes
    loses a slot by a run that it cannot send to them.
    """
    ours = symbol_by_name(DELIVERY_REQUEST)
    apply_async = pool.apply_async

    @wraps(apply_async)
    def watched(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        on_success = options.get("callback")
        on_error = options.get("error_callback")
        request = getattr(options.get("accept_callback"), "__self__", None)
        request = request if isinstance(request, ours) else None
        if processes and request is not None and not request.dispatch():
            raise TaskRevokedError(request.id)

        def on_result(result: Any, *more: Any, **named: Any) -> Any:
            if isinstance(result, ExceptionInfo) and on_error is not None:
                return on_error(result)
            return on_success(result, *more, **named) if on_success is not None else None

        if not processes:
            return apply_async(_heard(target), args, kwargs or {}, **{**options, "callback": on_result})
        try:
            return apply_async(target, args, kwargs or {}, **options)
        except Exception as exc:
            if request is None:
                raise
            _not_sent(pool, request, exc)
            raise TaskRevokedError(request.id) from exc  # has Celery free the slot

    return watched


def _not_sent(pool: Any, request: Any, exc: Exception) -> None:
    """A run could not be sent to the pool's processes: arguments nested too deep to be pickled, for one."""
    for job in list(pool._pool._cache.values()):  # noqa: SLF001 - billiard would wait for it at the end
        if getattr(job, "_callback", None) == request.on_success and not job._accepted:  # noqa: SLF001
            job.discard()
    symbol_by_name("celery.worker.state:task_ready")(request)
    # Another worker's pool may be of another kind.
    request.message.refuse(f"it cannot be sent to a pool process: {exc!r}", others_may=True)


def _keep_what_was_sent(pool: Any) -> None:
    """Have a pool with processes forget no run that one of them has, though it did not say so yet.

    When a consumer ends, Celery forgets them for the broker to hand out again, and never reads how they
    ended (celery/concurrency/asynpool.py: `AsynPool.flush`). But what was sent runs, and its message is held.
    What was not sent is given back. Main thread.
    """
    flush = pool.flush
    if flush is None or hasattr(flush, "__wrapped__"):  # without an event loop there is none
        return

    @wraps(flush)
    def flush_the_rest() -> None:
        cache = pool._pool._cache  # noqa: SLF001 - has the runs that billiard waits for at the end
        unread = {number: job for number, job in cache.items() if not job._accepted}  # noqa: SLF001
        flush()
        for number, job in unread.items():
            if number in cache or job.ready():
                continue
            sent_to = job._write_to  # noqa: SLF001
            if sent_to is not None and sent_to._is_alive():  # noqa: SLF001
                cache[number] = job
                continue
            request = getattr(job._callback, "__self__", None)  # noqa: SLF001
            if isinstance(request, symbol_by_name(DELIVERY_REQUEST)):
                request.settle(Release())

    pool.flush = flush_the_rest


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
