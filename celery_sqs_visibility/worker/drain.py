"""End of a worker: waiting messages are given back at once, those of running tasks when their time is over.

Celery's warm shutdown (celery/worker/worker.py: `WorkController.stop`) waits in the main thread until running
tasks have ended, and then closes the channel. The drain's thread stops the polls and gives back messages
whose runs have not begun. When the time is over, it gives back the messages of the remaining runs and ends
these runs, so that the main thread need not wait and ends as usual. The process is killed only if that takes
too long.

The process outlives its polls in flight: SQS does not notice that a client is gone, and would hand the next
message to its open poll.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

from billiard.process import active_children
from celery.platforms import EX_FAILURE, EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.contacts.pool import processes_of
from celery_sqs_visibility.core.delivery import Delivery, State
from celery_sqs_visibility.core.giving_back import POLLS_IN_FLIGHT_SECONDS
from celery_sqs_visibility.core.settlements import RELEASE
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.threads import is_main_thread, snapshot, start_thread
from celery_sqs_visibility.events import DeliveryEvent, Received, Released, log_safely, subscribe
from celery_sqs_visibility.policy.backoff import MAX_REPLY_GRACE_SECONDS
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.task.chord_end import is_at_end
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.pool_patches import RUN_CODE

logger = get_logger(__name__)

#: How long Celery may take to end once no run is waited for: signals, `atexit`, saved state.
END_SECONDS: Final = 5.0

#: The process must end this long before a SIGKILL.
BEFORE_SIGKILL_SECONDS: Final = 0.5

#: Runs that were acknowledged early are ended this long before a SIGKILL. Celery's pool checks each half
#: second whether its processes are gone, one by one, and on a busy machine the end takes a second more.
EARLY_BEFORE_SIGKILL_SECONDS: Final = 3.0

#: How often each wait checks whether a later signal has shortened it.
RECHECK_SECONDS: Final = 0.5

#: A run on the main thread may clean up for this long before it is interrupted again.
UNWIND_SECONDS: Final = 2.0

#: Seconds from SIGTERM to SIGKILL: in Kubernetes the pod's terminationGracePeriodSeconds, repeated as
#: the literal value of an environment variable.
GRACE_VARIABLE: Final = "TERMINATION_GRACE_PERIOD_SECONDS"

#: Set by Amazon ECS in every container.
ECS_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"

#: Amazon ECS's default `stopTimeout`.
ECS_STOP_SECONDS: Final = 30

#: Handing back messages and ending take at most this long.
MARGIN_SECONDS: Final = 2

#: The time of runs is a known grace period less this, unless the option is set.
RESERVE_SECONDS: Final = 5


class Drain:
    """Drains one worker, once, in a thread of its own.

    Signal handlers call `begin`, `shorten_polls` and `hurry`, which do no I/O and take no lock.
    """

    def __init__(self, consumer: Any) -> None:
        self._controller = consumer.controller
        self._context: BrokerContext = consumer.connection.transport.context
        self._timeout, self._grace = shutdown_times(self._context.options.shutdown_timeout)
        # Whether to drain, or to end the thread. This kind of queue allows a signal handler to put while its
        # own thread is putting.
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._began_at: float | None = None  # monotonic instants
        self._runs_until = math.inf  # when the messages of running tasks are handed back
        self._hurried_at = math.inf
        self._cold = False
        self._polls_shortened = False
        self._drained = threading.Event()
        self._handed_back = False  # whether messages of runs were, which processes may not have read yet
        self._runs = LastRuns()
        self._owns_process = True  # and may end it
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which waits for `begin`. The worker's main thread.

        Raises:
            RuntimeError: the system refuses a new thread.
        """
        self._owns_process = is_main_thread()
        self._thread = start_thread(self._run, "sqs-drain")
        if self._thread is None:
            raise RuntimeError("cannot start the thread that shuts down")

    def begin(self, timeout: float | None = None, *, cold: bool = False) -> None:
        """Begin the drain, or shorten the time that is left; no call prolongs it. In a signal handler.

        Args:
            timeout: seconds from now that running tasks have, by default those of `shutdown_times`. With
                `math.inf` no run is ended.
            cold: then end all runs, including those acknowledged early, and exit with the status of a
                failure.
        """
        now = SYSTEM_CLOCK.monotonic()
        self._runs_until = min(self._runs_until, now + (self._timeout if timeout is None else timeout))
        self._cold = self._cold or cold
        if self._began_at is None:
            self._began_at = now
        self._orders.put(True)

    def shorten_polls(self) -> None:
        """Wait only briefly for polls in flight. In a signal handler."""
        self._polls_shortened = True

    def hurry(self) -> None:
        """Don't wait for polls, nor, beyond the time of all runs, for runs that were acknowledged early.

        In a signal handler.
        """
        self._hurried_at = min(self._hurried_at, SYSTEM_CLOCK.monotonic())

    @property
    def interrupts_main_thread(self) -> bool:
        """Whether SIGQUIT is sent to end the run on the main thread. In a signal handler."""
        return self._runs.interrupts

    def finish(self) -> None:
        """Wait for polls in flight and their messages. Main thread, after the pool has ended."""
        if self._began_at is None:
            return
        # Including consumers inside tasks: all tasks have ended.
        queue_consumers = snapshot(self._context.receiving.queue_consumers)
        for queue_consumer in queue_consumers:
            queue_consumer.stop_polling()
        self._wait_for_polls(queue_consumers, self._polls_until)
        # No run is left that would settle held messages: the channel gives back what Celery has.
        while not self._drained.is_set() and not any(each.held() for each in queue_consumers):
            self._drained.wait(RECHECK_SECONDS)
        # A process that ended after its last task has not read these, and the pool starts no new one.
        held = [delivery for queue_consumer in queue_consumers for delivery in queue_consumer.held()]
        unread = [each for each in held if each.state is State.DISPATCHED and each.settle(RELEASE)]
        if unread:
            logger.info("shutdown: %s given back that no process had begun", _messages(len(unread)))

    def end_broadcasts(self) -> None:
        """Delete the worker's Broadcast queues now, and its control queue when the process ends.

        Main thread, after `finish`.
        """
        self._context.end_broadcasts()
        self._context.end_control_first()

    def cancel(self) -> None:
        """End the thread because the worker has stopped, unless it has ended runs."""
        self._cancelled = True
        self._orders.put(False)

    def _run(self) -> None:
        while self._orders.get():
            if not self._drained.is_set():
                self._drain_once()
                self._drained.set()
            if math.isfinite(self._runs_until):
                self._end_runs()

    def _drain_once(self) -> None:
        released = _ReleasedMessages()
        try:
            self._drain(snapshot(self._context.receiving.worker_queue_consumers), released)
        except Exception:
            logger.exception("error while draining; held messages come back when their visibility ends")
        finally:
            released.forget()

    def _drain(self, queue_consumers: list[QueueConsumer], released: _ReleasedMessages) -> None:
        """Stop the polls, then give back or settle everything that is held."""
        left = self._left()
        time_left = f"{round(left, 1):g} s" if math.isfinite(left) else "as long as they take"
        logger.info("shutdown: no more polls; running tasks have %s", time_left)
        for queue_consumer in queue_consumers:
            queue_consumer.stop_polling()
        self._set_end(queue_consumers)
        given_back = _give_back_unstarted(queue_consumers)
        count = sum(map(released.has, given_back))
        logger.info("shutdown: %s given back that had not begun", _messages(count))
        self._wait_for_polls(queue_consumers, lambda: min(self._polls_until(), self._runs_until))
        given_back += _give_back_unstarted(queue_consumers)  # received by a poll just before it stopped
        self._wait_for_runs(queue_consumers)
        if (release_keys := self._context.release_keys) is not None:
            if self._left() <= 0:
                self._runs.end_exclusive()
            release_keys()  # before another worker can have the messages
        orphans = [delivery for queue_consumer in queue_consumers for delivery in queue_consumer.hand_back()]
        self._handed_back = bool(orphans)
        _log_outcome(given_back, orphans, released)

    def _end_runs(self) -> None:
        """End the runs whose messages were handed back; when time is over, those acknowledged early, too."""
        runs = self._runs
        # The remaining runs have lost their messages, or remain after an error.
        while (left := self._left()) > 0 and runs.acknowledged_late():
            sleep(min(left, RECHECK_SECONDS))
        runs.end_acknowledged_late()
        if early := len(runs.acknowledged_early()):
            logger.info("shutdown: waiting for runs that were acknowledged when they began: %d", early)
        while runs.acknowledged_early() and not self._cancelled:
            if (left := self._early_until - SYSTEM_CLOCK.monotonic()) <= 0:
                runs.end_acknowledged_early()
            else:
                sleep(min(left, RECHECK_SECONDS))
            runs.end_acknowledged_late()
        if runs.any_ended:
            self._end_consumers_of_tasks()
            if self._owns_process:
                self._bound_the_end()
        else:
            self._end_processes()

    def _end_processes(self) -> None:
        """Kill processes of the pool that don't end, because Celery would wait for them.

        They are killed at once if they may still read a run that was handed back.
        """
        until = SYSTEM_CLOCK.monotonic() + self._left() + END_SECONDS
        while (alive := self._processes()) and not (self._cancelled or self._handed_back):
            if (left := until - SYSTEM_CLOCK.monotonic()) <= 0:
                break
            sleep(min(left, RECHECK_SECONDS))
        if alive and not self._cancelled:
            log_safely(logger.warning, "shutdown: killing the pool's processes that do not end: %s", alive)
            _kill(alive)

    def _processes(self) -> list[int]:
        """The pids of the pool's living processes."""
        return [each.pid for each in processes_of(self._controller.pool) or [] if each.is_alive()]

    def _bound_the_end(self) -> None:
        """Give Celery's main thread and the interpreter their time to end, then end the process."""
        now = SYSTEM_CLOCK.monotonic()
        sigkill = (self._began_at or now) + self._grace
        until = min(now + END_SECONDS, max(sigkill - BEFORE_SIGKILL_SECONDS, now + RECHECK_SECONDS))
        logger.warning("shutdown: time is up, ending within %.1f s", until - now)
        while (left := until - SYSTEM_CLOCK.monotonic()) > 0:
            self._runs.end_acknowledged_late()
            sleep(min(left, RECHECK_SECONDS))
        self._end_process()

    def _wait_for_polls(self, queue_consumers: list[QueueConsumer], until: Callable[[], float]) -> None:
        while (now := SYSTEM_CLOCK.monotonic()) < (end := until()):
            if all(each.wait_for_polls(min(end, now + RECHECK_SECONDS)) for each in queue_consumers):
                return
        self._set_end(queue_consumers)

    def _wait_for_runs(self, queue_consumers: list[QueueConsumer]) -> None:
        for queue_consumer in queue_consumers:
            while (left := self._left()) > 0 and not queue_consumer.wait_until_empty(
                min(left, RECHECK_SECONDS)
            ):
                self._set_end(queue_consumers)

    def _set_end(self, queue_consumers: list[QueueConsumer]) -> None:
        for queue_consumer in queue_consumers:
            queue_consumer.end_by(self._ends_at, self._polls_until())

    def _end_consumers_of_tasks(self) -> None:
        """End the consumers inside tasks, as their runs are ended."""
        workers = snapshot(self._context.receiving.worker_queue_consumers)
        for queue_consumer in set(snapshot(self._context.receiving.queue_consumers)).difference(workers):
            queue_consumer.stop_polling()
            queue_consumer.end_by(self._ends_at, self._ends_at)
            queue_consumer.hand_back()

    def _polls_until(self) -> float:
        """The monotonic instant until which to wait for polls in flight. SQS has answered by then."""
        longest = self._context.options.longest_poll + MAX_REPLY_GRACE_SECONDS
        seconds = POLLS_IN_FLIGHT_SECONDS if self._polls_shortened else longest
        return min((self._began_at or 0.0) + seconds, self._ends_at, self._hurried_at)

    @property
    def _early_until(self) -> float:
        """The monotonic instant until which to wait for runs that were acknowledged early."""
        if self._cold or math.isfinite(self._hurried_at):
            return self._runs_until
        return (self._began_at or 0.0) + max(0.0, self._grace - EARLY_BEFORE_SIGKILL_SECONDS)

    @property
    def _ends_at(self) -> float:
        """The monotonic instant by which the process should end: a cold shutdown gives runs less time."""
        if not self._cold:
            return self._runs_until
        return max(self._runs_until, (self._began_at or 0.0) + POLLS_IN_FLIGHT_SECONDS)

    def _left(self) -> float:
        return max(0.0, self._runs_until - SYSTEM_CLOCK.monotonic())

    def _end_process(self) -> None:
        """End this process and its children, because Celery's main thread or the interpreter hangs."""
        logger.error("shutdown: the worker does not end in time: what it still does is cut off")
        # The children of the pool and of an embedded beat.
        _kill([child.pid for child in active_children() if child.pid])
        if self._controller.pidlock:
            self._controller.pidlock.release()

        def delete_queues() -> None:
            self._context.end_control()
            if self._context.options.supports_fanout:
                self._context.end_broadcasts()

        deleting = start_thread(delete_queues, "sqs-end-queues")
        if deleting is not None:
            deleting.join(1.5)
        # Not sys.exit: the main thread, or one it waits for, can't be made to end.
        os._exit(EX_FAILURE if self._cold else EX_OK)


class _ReleasedMessages:
    """Messages that SQS confirmed as released, and that this process did not receive again. Any thread."""

    def __init__(self) -> None:
        self._released: set[tuple[str, str]] = set()
        self.forget = subscribe(self._on_event)

    def has(self, delivery: Delivery) -> bool:
        """Whether the delivery's message is one of them."""
        return (delivery.queue.name, delivery.facts.message_id) in self._released

    def _on_event(self, event: DeliveryEvent) -> None:
        key = event.delivery.queue, event.delivery.message_id
        if isinstance(event, Released):
            self._released.add(key)
        elif isinstance(event, Received):
            self._released.discard(key)


def _give_back_unstarted(queue_consumers: list[QueueConsumer]) -> list[Delivery]:
    return [delivery for each in queue_consumers for delivery in each.give_back_unstarted()]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _log_outcome(given_back: list[Delivery], orphans: list[Delivery], released: _ReleasedMessages) -> None:
    """Log the orphaned runs, and messages that could not be given back because SQS does not answer."""
    for orphan in orphans:
        facts = orphan.facts
        fields = Fields(task=facts.task, task_id=facts.task_id, message_id=facts.message_id)
        outcome = "orphaned, handed back"
        if not released.has(orphan):
            outcome = "orphaned, could not be handed back: comes back after its visibility timeout"
        logger.warning("shutdown: %s (%s)", outcome, fields, extra={"sqs": fields})
    kept = [delivery.facts.message_id for delivery in given_back if not released.has(delivery)]
    if kept:
        fields = Fields(message_ids=",".join(kept))
        logger.warning(
            "shutdown: %s could not be given back: hidden until the visibility timeout is over (%s)",
            _messages(len(kept)),
            fields,
            extra={"sqs": fields},
        )


def _in_a_thread(act: Callable[[], None]) -> None:
    """Call `act` in a thread of its own, or here if the system refuses one. It may block under eventlet."""
    if start_thread(act, "sqs-end-run") is None:
        act()


class LastRuns:
    """The runs that go on when a worker's time is up. Each is ended or abandoned. The drain's thread.

    Processes and greenlets are killed. Threads can't be: the pool and the interpreter stop waiting for them.
    The main thread of a solo pool is interrupted by a signal, whose handler raises `WorkerShutdown` in the
    run; Celery's tracer lets that pass.

    Args:
        active: returns the requests of all runs.
        call: calls a function that ends a run, which may take long.
    """

    def __init__(
        self,
        active: Callable[[], list[Any]] = lambda: snapshot(state.active_requests),
        call: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._active = active
        self._call = call
        self._postponed = False  # whether a run was publishing its chord, and is ended a moment later
        self._ended: set[int] = set()  # ids of requests, which Celery's state keeps until the process ends
        self.interrupts = False  # whether the main thread's run must end; read by signal handlers
        self._interrupt_at = 0.0  # not before this monotonic instant

    @property
    def any_ended(self) -> bool:
        """Whether a run was ended or abandoned, so that Celery might still wait for it."""
        return bool(self._ended) or self._postponed

    def acknowledged_early(self) -> list[Any]:
        """The requests of runs that have not been ended and whose messages were deleted when they began."""
        waited_for = [each for each in self._active() if id(each) not in self._ended]
        return [each for each in waited_for if _is_acknowledged_early(each)]

    def acknowledged_late(self) -> list[Any]:
        """The requests of runs whose messages are held until their end, or have been lost."""
        return [each for each in self._active() if not _is_acknowledged_early(each)]

    def end_acknowledged_late(self) -> None:
        """End the runs whose messages other workers may have by now.

        Repeated calls end runs that began meanwhile, and interrupt the main thread while its run unwinds.
        """
        for request in self.acknowledged_late():
            self._end(request)
        if self.interrupts and (now := SYSTEM_CLOCK.monotonic()) >= self._interrupt_at:
            self._interrupt_at = now + UNWIND_SECONDS
            _interrupt_main_thread()

    def end_exclusive(self) -> None:
        """Kill the processes of exclusive tasks, before other workers may have their keys."""
        for request in self.acknowledged_late():
            if getattr(request, "is_killed_before_its_key_is_free", False):
                self._ended.add(id(request))
                request.end_in_shutdown()

    def end_acknowledged_early(self) -> None:
        """End the runs that were acknowledged early, except one on the main thread. They are lost."""
        for request in self.acknowledged_early():
            fields = Fields(task=request.name, task_id=request.id)
            log_safely(
                logger.error,
                "shutdown: lost: it was acknowledged when it began, and does not end in time (%s)",
                fields,
                extra={"sqs": fields},
            )
            self._end(request)

    def _end(self, request: Any) -> None:
        if id(request) in self._ended:
            return
        if getattr(request, "publishes_chord", False):
            self._postponed = True
            return
        self._ended.add(id(request))
        if getattr(request, "is_on_main_thread", False):
            self.interrupts, self._interrupt_at = True, 0.0
        elif (end := getattr(request, "end_in_shutdown", None)) is not None:  # otherwise it isn't ours
            self._call(end)


def may_interrupt(frame: FrameType | None) -> bool:
    """Returns whether this thread's frame is within a run of a pool without processes.

    False for a run that may be publishing the body of its chord. In a signal handler.
    """
    if is_at_end(threading.get_ident()):
        return False
    while frame is not None:
        if frame.f_code is RUN_CODE:
            return True
        frame = frame.f_back
    return False


def _is_acknowledged_early(request: Any) -> bool:
    delivery = getattr(request, "delivery", None)
    return delivery is None or delivery.acknowledged_early


def _interrupt_main_thread() -> None:
    """Interrupt the run on the main thread by SIGQUIT, which `bootsteps.Endings` handles."""
    main = threading.main_thread().ident
    if main is not None and callable(signal.getsignal(signal.SIGQUIT)):  # otherwise it kills the process
        signal.pthread_kill(main, signal.SIGQUIT)


def shutdown_times(stated: float | None) -> tuple[float, float]:
    """Seconds from SIGTERM to the end of runs, and to SIGKILL; infinity if that is unknown.

    `stated` is the option. Warns if it is too long for the grace period.
    """
    grace, reason = grace_period()
    timeout = time_of_runs(stated, grace)
    longest = max(0.0, grace - MARGIN_SECONDS)
    if timeout > longest:
        logger.warning(
            "shutdown_timeout is %g s, but %s: set at most %g, or messages of running tasks stay hidden "
            "for a visibility timeout",
            timeout,
            reason,
            longest,
        )
    return timeout, grace


def time_of_runs(stated: float | None, grace: float) -> float:
    """Seconds that runs have after SIGTERM: as `stated`, or the grace period less a reserve."""
    if stated is not None:
        return stated
    known = grace if math.isfinite(grace) else ECS_STOP_SECONDS  # Kubernetes' default is the same
    return max(0.0, known - RESERVE_SECONDS)


def grace_period() -> tuple[float, str]:
    """Seconds from SIGTERM to SIGKILL, infinity if unknown, and a clause that names the source."""
    seconds = os.environ.get(GRACE_VARIABLE)
    if seconds:
        try:
            return float(seconds), f"{GRACE_VARIABLE} says that SIGKILL comes {seconds} s after SIGTERM"
        except ValueError:
            logger.warning("expected %s to be a number of seconds, got %r", GRACE_VARIABLE, seconds)
    if ECS_VARIABLE in os.environ:
        return ECS_STOP_SECONDS, (
            f"Amazon ECS kills {ECS_STOP_SECONDS} s after SIGTERM, unless stopTimeout is longer "
            f"(then say so in {GRACE_VARIABLE})"
        )
    return math.inf, ""
