"""Contacts with Celery's workers: their requests, consumers and signal handlers. Main thread, if not said.

A function that replaces a method returns Celery's own if ours is to call it. Methods are replaced on one
object, never on a class: other workers and apps of the process stay Celery's.
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
#: shutdown would run inside a signal's handler, where it may hang, and the first Ctrl-C would be a failure.
COLD_HANDLER: Final = "worker_Cold"
WARM_HANDLER: Final = "worker_Warm"

#: Celery's name of its handler of SIGHUP (celery/apps/worker.py: `install_worker_restart_handler`). Without
#: it a worker that was started by `python -m celery` could not be restarted.
RESTART_HANDLER: Final = "restart_worker_sig_handler"


class CeleryRequest(Request):
    """Celery's request, with public names for what its subclasses need (celery/worker/request.py: `Request`).

    Celery's stubs leave out all of it. Any thread.
    """

    acknowledged: bool

    #: The slot `_request_dict` itself, in place of Celery's property, which would be a call for each message.
    #: A task is told its delivery in it.
    request_dict: dict[str, Any] = _slots._request_dict

    #: Likewise the slot `_eta`: when Celery's timer is to let it run.
    eta: datetime | None = _slots._eta

    #: The request as the task sees it, as `self.request`; Celery makes it of the message when it is first
    #: needed (`_context`). Without it a run that is lost could not be reported.
    context = property(attrgetter("_context"))

    #: Whether it was revoked, and Celery has said so (`_already_revoked`): without it a revoked run whose
    #: process is gone would come back.
    already_revoked = property(attrgetter("_already_revoked"))

    #: Whether its run is killed for another reason than a revocation (`_already_cancelled`). Without it
    #: Celery takes the end of its process for a revocation, and deletes the message.
    already_cancelled = property(attrgetter("_already_cancelled"))

    def say_cancelled(self) -> None:
        """Say, before the run is killed, that it is not revoked: Celery says so too late."""
        self._already_cancelled = True

    def success_was_stored(self) -> bool:
        """Whether the child was lost after it had stored its success (`_success_was_stored`, Celery 5.7).

        Asks the result backend. Without it such a run would be run again.
        """
        stored = getattr(self, "_success_was_stored", None)
        return bool(stored and stored())


class Connecting:
    """Takes the place of `Consumer.connect` (celery/worker/consumer/consumer.py), once for each consumer.

    The step `Connection.start` calls it (celery/worker/consumer/connection.py).
    Without it a worker would receive before its queues are there, and answer no probe while it waits.

    Attributes:
        before: called, in this order, whenever the consumer is about to connect.
        after: called with the connection.
    """

    def __init__(self, consumer: Any) -> None:
        self._connect: Callable[[], Any] = consumer.connect
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[Any], object]] = []
        consumer.connect = self

    def __call__(self) -> Any:
        """Connect."""
        for act in self.before:
            act()
        connection = self._connect()
        for look in self.after:
            look(connection)
        return connection


def connecting(consumer: Any) -> Connecting:
    """The one `Connecting` of a consumer."""
    there = consumer.connect
    return there if isinstance(there, Connecting) else Connecting(consumer)


def call_at_close(consumer: Any, act: Callable[[], None]) -> None:
    """Call `act` when the worker begins to stop.

    Celery calls a consumer's `close` (celery/worker/worker.py: `WorkController.signal_consumer_close`), and
    its own consumer has none. Without this a worker that stops without a signal, as at SIGHUP, would not
    drain.
    """
    consumer.close = act


def refuse_by(consumer: Any, ours: Any) -> None:
    """Refuse bad messages by the methods of `ours`, which have the names of Celery's.

    celery/worker/consumer/consumer.py. Without it Celery would delete these messages.
    """
    consumer.on_unknown_message = ours.on_unknown_message
    consumer.on_unknown_task = ours.on_unknown_task
    consumer.on_invalid_task = ours.on_invalid_task
    consumer.on_decode_error = ours.on_decode_error


def wrap_message_handler(consumer: Any, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Wrap the handler of messages that an event loop makes anew at each of its starts.

    celery/worker/consumer/consumer.py: `create_task_handler`; celery/worker/loops.py. Without it Celery would
    see messages over which it stumbles: one may cost the pool a slot, or end the worker.
    """
    create = consumer.create_task_handler

    @wraps(create)
    def create_wrapped(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return wrap(create(*args, **kwargs))

    consumer.create_task_handler = create_wrapped


def update_strategies_by(consumer: Any, update: Callable[[], None]) -> Callable[[], None]:
    """Replace the method that learns of tasks (celery/worker/consumer/consumer.py: `update_strategies`).

    Celery calls it at each of its connections and at `pool_restart`. Without this the messages of a task that
    is registered after the start would not be settled by the ends of their runs.
    """
    theirs: Callable[[], None] = consumer.update_strategies
    consumer.update_strategies = update
    return theirs


def add_queues_by(consumer: Any, add: Callable[..., None]) -> Callable[..., None]:
    """Replace the method that adds a queue while the worker runs (`Consumer.add_task_queue`).

    Celery's event loop calls it (celery/worker/control.py: `add_consumer`). Without this an error about the
    queue would end the worker.
    """
    theirs: Callable[..., None] = consumer.add_task_queue
    consumer.add_task_queue = add
    return theirs


class RateMethods(NamedTuple):
    """Celery's methods by which tasks wait for their rate.

    The first two take a request, its bucket and its tokens: it has arrived, or its ETA has come. The third
    takes a request whose turn has come.
    """

    limit_task: Callable[[Any, Any, int], Any]
    limit_post_eta: Callable[[Any, Any, int], Any]
    move_to_pool: Callable[[Any], None]


def limit_by(consumer: Any, ours: Any) -> RateMethods:
    """Let tasks wait for their rate by the methods of `ours`, which have the names of `RateMethods`.

    celery/worker/consumer/consumer.py: `_limit_task`, `_limit_post_eta`, `_limit_move_to_pool`. Celery's own
    hold each task in the worker's memory until its turn. Without ours a few tasks whose turns are far away
    would take all places of the worker, and it would receive nothing else.
    """
    theirs = RateMethods(consumer._limit_task, consumer._limit_post_eta, consumer._limit_move_to_pool)
    consumer._limit_task = ours.limit_task
    consumer._limit_post_eta = ours.limit_post_eta
    consumer._limit_move_to_pool = ours.move_to_pool
    return theirs


def apply_etas_by(consumer: Any, apply: Callable[[Any], None]) -> Callable[[Any], None]:
    """Replace what a timer calls when a task's ETA has come: `apply_eta_task`.

    celery/worker/consumer/consumer.py. Without it a task whose ETA has come would take no slot, and the
    worker would receive a message too many.
    """
    theirs: Callable[[Any], None] = consumer.apply_eta_task
    consumer.apply_eta_task = apply
    return theirs


def keep_prefetch_count(consumer: Any) -> None:
    """Keep the prefetch count after a lost connection (`Consumer.on_connection_error_after_connected`).

    Before 5.7 Celery lowers it by the tasks that still run, and raises it again when it acknowledges tasks of
    the new connection. Our requests acknowledge theirs themselves: without this it would stay low.
    """
    consumer.app.conf.worker_enable_prefetch_count_reduction = False


def hand_over_by(consumer: Any, hand_over: Callable[[Any], None]) -> Callable[[], None]:
    """Let `hand_over` give requests to the pool, each once it has a slot; returns what frees a slot.

    In place of `WorkController._process_task` (celery/worker/worker.py, celery/worker/components.py:
    `Pool.create`), which a consumer is made with. Celery frees the slots of revoked runs only: without this a
    worker would lose the slot of each run that cannot be handed over, and in the end run nothing.
    """
    worker = consumer.controller
    semaphore: LaxBoundedSemaphore | None = worker.semaphore
    if semaphore is None or not (worker.pool_putlocks and consumer.pool.uses_semaphore):
        consumer.on_task_request = hand_over
        return _nothing
    consumer.on_task_request = partial(semaphore.acquire, hand_over)
    return semaphore.release


def _nothing() -> None:
    """Free no slot: there are none."""


def answer_by(node: Any, handle: Callable[[str, Any], Any]) -> None:
    """Answer control commands by `handle` (kombu/pidbox.py: `Node.handle_call`, which calls `handle` alone).

    kombu encodes an answer where it catches nothing: without this the caller of a command whose answer is not
    JSON would wait in vain.
    """
    node.handle_call = handle
