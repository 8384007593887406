"""A worker's end: messages that wait are given back at once, those of running tasks when their time is over.

Celery's warm shutdown (celery/worker/worker.py: `WorkController.stop`) waits in the main thread for running
tasks, however long they take, and then closes the channel. The drain's thread stops the polls, gives back
what has not begun, and when the time is over what still runs; then it ends the process.

The process outlives its polls in flight: SQS does not notice that a client is gone, and would hand the next
message to the open poll.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from billiard.process import active_children
from celery.platforms import EX_FAILURE, EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.shutdown import POLLS_IN_FLIGHT_SECONDS
from celery_sqs_visibility.delivery.threads import copy_of, start_thread
from celery_sqs_visibility.events import DeliveryEvent, Received, Released, subscribe
from celery_sqs_visibility.policy.backoff import LONGEST_REPLY_GRACE_SECONDS
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.worker.grace_period import warn_if_too_long

logger = get_logger(__name__)

#: A process whose time is up waits this long for the deletion of its Broadcast queues.
END_BROADCASTS_SECONDS: Final = 1.5

#: A later signal may shorten a wait: each wait looks for that this often.
RECHECK_SECONDS: Final = 0.5


class Drain:
    """Drains one worker, once, in a thread of its own.

    Signal handlers call `begin` and `shorten_polls`, which do no I/O and take no lock.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
    """

    def __init__(self, consumer: Any) -> None:
        self._controller = consumer.controller
        self._context: BrokerContext = consumer.connection.transport.context
        self._timeout = self._context.options.shutdown_timeout
        # Whether to drain, or to end the thread. A signal handler may put while the same thread is putting:
        # this kind of queue allows that.
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._began_at: float | None = None  # monotonic instants
        self._runs_until = math.inf  # when the messages of running tasks are handed back
        self._cold = False
        self._polls_shortened = False
        self._drained = threading.Event()  # at least once
        self._thread = threading.Thread(target=self._run, name="sqs-drain", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for `begin`. Main thread."""
        warn_if_too_long(self._timeout)
        self._thread.start()

    def begin(self, timeout: float | None = None, *, cold: bool = False) -> None:
        """Begin, or shorten the time that is left; no call prolongs it. In a signal handler.

        Args:
            timeout: seconds from now that running tasks have; `shutdown_timeout` by default.
            cold: end all runs then, those acknowledged early too, with the status of a failure.
        """
        now = SYSTEM_CLOCK.monotonic()
        self._runs_until = min(self._runs_until, now + (self._timeout if timeout is None else timeout))
        self._cold = self._cold or cold
        if self._began_at is None:
            self._began_at = now
        self._orders.put(True)

    def shorten_polls(self) -> None:
        """Wait for polls in flight for a moment only. In a signal handler."""
        self._polls_shortened = True

    def finish(self) -> None:
        """Wait for polls in flight, and for what follows from them. Main thread, after the pool has ended."""
        if self._began_at is None:
            return
        queue_consumers = copy_of(self._context.queue_consumers)  # those of tasks too, which have all ended
        for queue_consumer in queue_consumers:
            queue_consumer.stop_polling()
        self._wait_for_polls(queue_consumers, self._polls_until)
        # No run is left that would settle what is held now: the channel gives it back.
        while not self._drained.is_set() and not any(len(each.ledger) for each in queue_consumers):
            self._drained.wait(RECHECK_SECONDS)

    def end_broadcasts(self) -> None:
        """Delete the worker's Broadcast queues; its control queue as the process ends. After `finish`.

        Main thread.
        """
        self._context.end_broadcasts()
        self._context.end_control_first()

    def cancel(self) -> None:
        """End the thread if it has not begun: the worker has stopped."""
        self._orders.put(False)

    def _run(self) -> None:
        while self._orders.get():
            if self._drained.is_set() and not (self._cold and state.active_requests):
                continue  # a second drain only ends runs that were acknowledged early, in a cold shutdown
            released = _ReleasedMessages()
            try:
                anything_runs = self._drain(copy_of(self._context.worker_queue_consumers), released)
            except Exception:
                logger.exception("error while draining; held messages come back when their visibility ends")
                anything_runs = self._cold and bool(state.active_requests)
            finally:
                released.forget()
            if anything_runs:
                self._end_process()
            self._drained.set()

    def _drain(self, queue_consumers: list[QueueConsumer], released: _ReleasedMessages) -> bool:
        """Settle everything; whether a task still runs."""
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
        given_back += _give_back_unstarted(queue_consumers)  # brought by a poll just before it stopped
        self._wait_for_runs(queue_consumers)
        if (release_keys := self._context.release_keys) is not None:
            release_keys()  # before another worker can have the messages
        orphans = [delivery for queue_consumer in queue_consumers for delivery in queue_consumer.hand_back()]
        anything_runs = bool(orphans) or (self._cold and bool(state.active_requests))
        if anything_runs:
            self._end_consumers_of_tasks()
        _log_outcome(given_back, orphans, released)
        return anything_runs

    def _wait_for_polls(self, queue_consumers: list[QueueConsumer], until: Callable[[], float]) -> None:
        while (now := SYSTEM_CLOCK.monotonic()) < (end := until()):
            if all(each.wait_for_polls(min(end, now + RECHECK_SECONDS)) for each in queue_consumers):
                return
        self._set_end(queue_consumers)

    def _wait_for_runs(self, queue_consumers: list[QueueConsumer]) -> None:
        for queue_consumer in queue_consumers:
            while (left := self._left()) > 0 and not queue_consumer.ledger.wait_until_empty(
                min(left, RECHECK_SECONDS)
            ):
                self._set_end(queue_consumers)
        # A run that was acknowledged early is in no ledger.
        while self._cold and state.active_requests and (left := self._left()) > 0:
            threading.Event().wait(min(left, RECHECK_SECONDS))

    def _set_end(self, queue_consumers: list[QueueConsumer]) -> None:
        for queue_consumer in queue_consumers:
            queue_consumer.end_by(self._ends_at, self._polls_until())

    def _end_consumers_of_tasks(self) -> None:
        """Runs are ended, and so are the consumers inside them."""
        workers = copy_of(self._context.worker_queue_consumers)
        for queue_consumer in set(copy_of(self._context.queue_consumers)).difference(workers):
            queue_consumer.stop_polling()
            queue_consumer.end_by(self._ends_at, self._ends_at)
            queue_consumer.hand_back()

    def _polls_until(self) -> float:
        """The monotonic instant until which polls in flight are waited for; SQS has answered them by then."""
        longest = self._context.options.longest_poll + LONGEST_REPLY_GRACE_SECONDS
        seconds = POLLS_IN_FLIGHT_SECONDS if self._polls_shortened else longest
        return min((self._began_at or 0.0) + seconds, self._ends_at)

    @property
    def _ends_at(self) -> float:
        """The monotonic instant by which the process is to end: a cold shutdown gives runs less time."""
        if not self._cold:
            return self._runs_until
        return max(self._runs_until, (self._began_at or 0.0) + POLLS_IN_FLIGHT_SECONDS)

    def _left(self) -> float:
        return max(0.0, self._runs_until - SYSTEM_CLOCK.monotonic())

    def _end_process(self) -> None:
        """Kill what runs, and this process, whose main thread waits for that. All messages are settled."""
        logger.warning("shutdown: time is up, ending")
        # The pool's, and an embedded beat's.
        for pid in [child.pid for child in active_children() if child.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._controller.pidlock:
            self._controller.pidlock.release()
        self._context.end_control()
        if self._context.options.supports_fanout:
            deleting = start_thread(self._context.end_broadcasts, "sqs-end-broadcasts")
            if deleting is not None:
                deleting.join(END_BROADCASTS_SECONDS)
        # Not sys.exit: pool threads, and a solo pool's main thread, cannot be made to end.
        os._exit(EX_FAILURE if self._cold else EX_OK)


class _ReleasedMessages:
    """The messages that SQS has confirmed as released, and not handed to this process again. Any thread."""

    def __init__(self) -> None:
        self._released: set[tuple[str, str]] = set()
        self.forget = subscribe(self._on_event)

    def has(self, delivery: Delivery) -> bool:
        """Whether that delivery's message is one of them."""
        return (delivery.queue.name, delivery.facts.message_id) in self._released

    def _on_event(self, event: DeliveryEvent) -> None:
        key = event.delivery.queue, event.delivery.message_id
        if isinstance(event, Released):
            self._released.add(key)
        elif isinstance(event, Received):
            self._released.discard(key)


def _give_back_unstarted(queue_consumers: list[QueueConsumer]) -> list[Delivery]:
    return [delivery for each in queue_consumers for delivery in each.give_back_unstarted()]


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _log_outcome(given_back: list[Delivery], orphans: list[Delivery], released: _ReleasedMessages) -> None:
    """Log which runs are orphaned, and what could not be given back because SQS does not answer."""
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
