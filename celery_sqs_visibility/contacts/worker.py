"""Contacts with Celery's workers: requests, consumers, signal handlers. Main thread, unless noted.

A function that replaces a method returns Celery's own if ours calls it. It replaces the method of an object,
never of a class, so that other workers and apps of the process keep Celery's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from celery.worker.request import Request

if TYPE_CHECKING:
    from datetime import datetime

    from kombu.asynchronous.semaphore import LaxBoundedSemaphore

_slots = cast("Any", Request)

#: Celery's names of its signal handlers (celery/apps/worker.py: `_shutdown_handler`). Without them a cold
#: shutdown would run in a signal handler, where it may hang, and the first Ctrl-C would count as a failure.
COLD_HANDLER: Final = "worker_Cold"
WARM_HANDLER: Final = "worker_Warm"

#: Celery's name of its SIGHUP handler (celery/apps/worker.py: `install_worker_restart_handler`). Without it a
#: worker started by `python -m celery` could not be restarted.
RESTART_HANDLER: Final = "restart_worker_sig_handler"


class CeleryRequest(Request):
    """Celery's request, with public names for what its subclasses need (celery/worker/request.py: `Request`).

    Celery's stubs have none of them. Any thread.
    """

    acknowledged: bool

    #: The slot `_request_dict` instead of Celery's property, which would cost a call for each message. It
    #: tells a task its delivery.
    request_dict: dict[str, Any] = _slots._request_dict

    #: Likewise the slot `_eta`: when Celery's timer lets the task run.
    eta: datetime | None = _slots._eta

    #: The task's `self.request`, made from the message on first use (`_context`). Without it a lost run could
    #: not be reported.
    context = property(attrgetter("_context"))

    #: True once Celery has announced the revocation (`_already_revoked`). Without it a revoked run whose
    #: process has died would come back.
    already_revoked = property(attrgetter("_already_revoked"))

    #: True if the run is killed, but not because of a revocation (`_already_cancelled`). Without it Celery
    #: takes the death of its process for a revocation, and deletes the message.
    already_cancelled = property(attrgetter("_already_cancelled"))

    def mark_cancelled(self) -> None:
        """Mark the run as cancelled, not revoked, before it is killed: Celery does so too late."""
        self._already_cancelled = True

    def success_was_stored(self) -> bool:
        """Return whether the child died after it had stored its success (`_success_was_stored`, Celery 5.7).

        Asks the result backend. Without it such a run would be repeated.
        """
        stored = getattr(self, "_success_was_stored", None)
        return bool(stored and stored())


class Connecting:
    """A replacement of `Consumer.connect` (celery/worker/consumer/consumer.py), with hooks.

    The step `Connection.start` calls it (celery/worker/consumer/connection.py). Without it a worker would
    receive before its queues exist, and answer no probe while it waits for them.

    Attributes:
        before: called in this order, whenever the consumer is about to connect.
        after: called with the connection.
    """

    def __init__(self, consumer: Any) -> None:
        self._connect: Callable[[], Any] = consumer.connect
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[Any], object]] = []
        consumer.connect = self

    def __call__(self) -> Any:
        for act in self.before:
            act()
        connection = self._connect()
        for look in self.after:
            look(connection)
        return connection


def connecting(consumer: Any) -> Connecting:
    """Return the consumer's `Connecting`. Installs it at the first call."""
    there = consumer.connect
    return there if isinstance(there, Connecting) else Connecting(consumer)


def call_at_close(consumer: Any, act: Callable[[], None]) -> None:
    """Call `act` when the worker begins to stop.

    Celery calls the consumer's `close` (celery/worker/worker.py: `WorkController.signal_consumer_close`), but
    its own consumer has none. Without this a worker that stops without a shutdown signal, for example at
    SIGHUP, would not drain.
    """
    consumer.close = act


def replace_refusals(consumer: Any, ours: Any) -> None:
    """Replace the methods that refuse bad messages by the methods of `ours` with the same names.

    celery/worker/consumer/consumer.py. Without them Celery would delete these messages.
    """
    consumer.on_unknown_message = ours.on_unknown_message
    consumer.on_unknown_task = ours.on_unknown_task
    consumer.on_invalid_task = ours.on_invalid_task
    consumer.on_decode_error = ours.on_decode_error


def wrap_message_handler(consumer: Any, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Wrap the message handler, which the event loop creates each time it starts.

    celery/worker/consumer/consumer.py: `create_task_handler`; celery/worker/loops.py. Without it Celery would
    get messages that it cannot handle: one may cost the pool a slot, or end the worker.
    """
    create = consumer.create_task_handler

    @wraps(create)
    def create_wrapped(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return wrap(create(*args, **kwargs))

    consumer.create_task_handler = create_wrapped


def replace_update_strategies(consumer: Any, update: Callable[[], None]) -> Callable[[], None]:
    """Replace the method that learns of new tasks (celery/worker/consumer/consumer.py: `update_strategies`).

    Celery calls it when it connects, and at `pool_restart`. Without this the runs of a task that is
    registered after the start would not settle their messages.
    """
    theirs: Callable[[], None] = consumer.update_strategies
    consumer.update_strategies = update
    return theirs


def replace_add_task_queue(consumer: Any, add: Callable[..., None]) -> Callable[..., None]:
    """Replace the method that adds a queue to a running worker (`Consumer.add_task_queue`).

    Celery's event loop calls it (celery/worker/control.py: `add_consumer`). Without this an error of the
    queue would end the worker.
    """
    theirs: Callable[..., None] = consumer.add_task_queue
    consumer.add_task_queue = add
    return theirs


class RateMethods(NamedTuple):
    """Celery's methods that make tasks wait for their rate limit.

    The first takes a request, its bucket and its tokens, and sets a timer that looks at the bucket if it has
    to wait. The second takes a request that may run now.
    """

    limit_task: Callable[[Any, Any, int], Any]
    move_to_pool: Callable[[Any], None]


def replace_rate_limits(consumer: Any, ours: Any) -> RateMethods:
    """Replace the methods that apply rate limits by those of `ours`, which have their names.

    celery/worker/consumer/consumer.py: `_limit_task`, `_limit_post_eta`, `_limit_move_to_pool`. Celery's hold
    each task in memory until it may run. Without ours a few tasks that may not run for long would fill the
    worker, and it would receive nothing else.
    """
    theirs = RateMethods(consumer._limit_task, consumer._limit_move_to_pool)
    consumer._limit_task = ours.limit_task
    consumer._limit_post_eta = ours.limit_post_eta
    consumer._limit_move_to_pool = ours.move_to_pool
    return theirs


def replace_apply_eta_task(consumer: Any, apply: Callable[[Any], None]) -> Callable[[Any], None]:
    """Replace the method that a timer calls at a task's ETA (`Consumer.apply_eta_task`).

    celery/worker/consumer/consumer.py. Without ours such a task would take no slot, and the worker would
    receive one message too many.
    """
    theirs: Callable[[Any], None] = consumer.apply_eta_task
    consumer.apply_eta_task = apply
    return theirs


def call_due_timers(hub: Any) -> None:
    """Make a new event loop sleep only if no timer is due. Repeatable.

    kombu/asynchronous/hub.py: `Hub.fire_timers`. kombu's calls ten timers, and then waits up to a second for
    input or output: of a hundred tasks with one ETA, the last would start ten seconds late.
    """
    hub.fire_timers = partial(hub.fire_timers, min_delay=0)


def keep_prefetch_count(consumer: Any) -> None:
    """Keep the prefetch count after a lost connection (`Consumer.on_connection_error_after_connected`).

    Before 5.7 Celery lowers it by the number of running tasks, and raises it when it acknowledges tasks of
    the new connection. Our requests acknowledge their own, so without this it would stay low.
    """
    consumer.app.conf.worker_enable_prefetch_count_reduction = False


def replace_task_handover(consumer: Any, hand_over: Callable[[Any], None]) -> Callable[[], None]:
    """Let `hand_over` pass requests to the pool, each as soon as it has a slot. Returns what frees a slot.

    Replaces the consumer's `WorkController._process_task` (celery/worker/worker.py,
    celery/worker/components.py: `Pool.create`). Celery only frees the slots of revoked runs. Without this
    each run that cannot be handed over would cost the worker a slot, until it has none.
    """
    worker = consumer.controller
    semaphore: LaxBoundedSemaphore | None = worker.semaphore
    if semaphore is None or not (worker.pool_putlocks and consumer.pool.uses_semaphore):
        consumer.on_task_request = hand_over
        return lambda: None  # there are no slots
    consumer.on_task_request = partial(semaphore.acquire, hand_over)
    return semaphore.release


def replace_handle_call(node: Any, handle: Callable[[str, Any], Any]) -> None:
    """Replace the method that answers control commands (kombu/pidbox.py: `Node.handle_call`).

    kombu catches no error of the answer's encoding. Without this the caller of a command whose answer is not
    JSON would wait in vain.
    """
    node.handle_call = handle
