"""The end: hand back in time what will not be done, as Sidekiq does within the 30 seconds of Amazon ECS.

Celery's warm shutdown (celery/worker/worker.py: `WorkController.stop`) goes on beside this: it waits for the
running tasks, however long they take, and then closes the channel. We stop the polls, give back at once what
has not begun, and when `shutdown_timeout` is over what still runs; then the process ends. It does not end
before its polls in flight have: SQS does not notice that nobody listens any more, and would hand the next
message to a poll that is open.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from billiard.process import active_children
from celery.platforms import EX_OK
from celery.utils.log import get_logger

from celery_sqs_visibility.delivery.consumer import POLLS_IN_FLIGHT_SECONDS, QueueConsumer
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.events import DeliveryEvent, Received, Released, subscribe
from celery_sqs_visibility.policy.backoff import LONGEST_REPLY_GRACE_SECONDS
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = get_logger(__name__)

#: Tells in how many seconds after SIGTERM the SIGKILL comes, where nothing else does: in Kubernetes the pod's
#: terminationGracePeriodSeconds, repeated as the literal value of an environment variable.
GRACE_VARIABLE = "TERMINATION_GRACE_PERIOD_SECONDS"

#: Set by Amazon ECS in every container.
ECS_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"

#: Amazon ECS sends SIGKILL this many seconds after SIGTERM, unless the task definition says otherwise.
ECS_STOP_TIMEOUT = 30

#: What handing back and ending take, at the most.
MARGIN = 2

#: While runs and polls are waited for, it is looked that often, in seconds, whether they have less time now.
GLANCE = 0.5


class Drain:
    """Drains one worker when it is told to stop, in a thread of its own.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self._broker: BrokerContext = consumer.connection.transport.context
        self._timeout = self._broker.options.shutdown_timeout
        # A signal handler may put something in while it is being put in: this kind of queue bears it.
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # whether there is something to do
        self._until = math.inf  # the monotonic instant at which what still runs is handed back
        self._asked_at: float | None = None  # the monotonic instant at which it began
        self._hurried = False  # whether polls in flight are waited for a moment only
        self._exit_code = EX_OK
        self._thread = threading.Thread(target=self._run, name="sqs-drain", daemon=True)

    def watch(self) -> None:
        """Be ready. Main thread."""
        _warn_if_too_long(self._timeout)
        self._thread.start()

    def ask(self, timeout: float | None = None, exit_code: int = EX_OK) -> None:
        """Begin, or end sooner. In a signal handler: no I/O, and no lock.

        Args:
            timeout: seconds that runs have, from now on; `shutdown_timeout` by default. Who asks again gives
                no more time.
            exit_code: the status with which to end, if anything still runs then.
        """
        now = SYSTEM_CLOCK.monotonic()
        until = now + (self._timeout if timeout is None else timeout)
        if until < self._until:
            self._until, self._exit_code = until, exit_code
        if self._asked_at is None:
            self._asked_at = now
        self._wakes.put(True)

    def hurry(self) -> None:
        """Do not wait for polls in flight, but for a moment. In a signal handler: no I/O, and no lock."""
        self._hurried = True

    def stop_polling(self) -> None:
        """Have Celery get no more messages. In a signal handler: no I/O, and no lock that is not reentrant.

        A consumer inside a task goes on, until its task ends.
        """
        for queue_consumer in list(self._broker.worker_queue_consumers):
            queue_consumer.stop_polling()

    def finish(self) -> None:
        """Wait for polls in flight, and for what follows from them. Main thread, the pool having ended."""
        if self._asked_at is not None:
            queue_consumers = list(self._broker.queue_consumers)  # no task has a consumer any more
            for queue_consumer in queue_consumers:
                queue_consumer.stop_polling()
            self._wait_for_polls(self._asked_at, queue_consumers)
            # What is held now nobody runs any more, and nobody will settle it.
            while self._thread.is_alive() and not any(
                len(queue_consumer.ledger) for queue_consumer in self._broker.queue_consumers
            ):
                self._thread.join(GLANCE)

    def forget(self) -> None:
        """End the thread, if it was not asked for anything: the worker has stopped."""
        self._wakes.put(False)

    def _run(self) -> None:
        if not self._wakes.get():
            return
        orphans: list[Delivery] = []
        released = _ReleasedMessages()
        try:
            orphans = self._drain(list(self._broker.worker_queue_consumers), released)
        except Exception:
            logger.exception("draining stumbled; what is held comes back after its visibility timeout")
        finally:
            released.forget()
        if orphans:
            _end(self.consumer, self._exit_code)

    def _drain(self, queue_consumers: list[QueueConsumer], released: _ReleasedMessages) -> list[Delivery]:
        left = self._left()
        logger.info(
            "shutdown: no more polls; running tasks have %s",
            f"{left:.3g} s" if math.isfinite(left) else "as long as they take",
        )
        asked_at = self._asked_at or SYSTEM_CLOCK.monotonic()
        self.stop_polling()
        for queue_consumer in queue_consumers:
            queue_consumer.end_by(self._until, self._polls_until(asked_at))
        given_back = [
            delivery
            for queue_consumer in queue_consumers
            for delivery in queue_consumer.give_back_unstarted()
        ]
        count = sum(map(released.has, given_back))
        logger.info("shutdown: %d messages given back that had not begun", count)
        self._wait_for_polls(asked_at, queue_consumers)
        # What a poll had brought just before it was told to stop.
        given_back += [
            delivery
            for queue_consumer in queue_consumers
            for delivery in queue_consumer.give_back_unstarted()
        ]
        for queue_consumer in queue_consumers:
            while (left := self._left()) > 0 and not queue_consumer.ledger.wait_until_empty(
                min(left, GLANCE)
            ):
                queue_consumer.end_by(self._until, self._polls_until(asked_at))
        orphans = [delivery for queue_consumer in queue_consumers for delivery in queue_consumer.hand_back()]
        if orphans:
            self._end_consumers_of_tasks()
        _tell_what_became(given_back, orphans, released)
        return orphans

    def _end_consumers_of_tasks(self) -> None:
        """Runs are ended, and so are the consumers inside them. The drain's thread."""
        for queue_consumer in set(self._broker.queue_consumers) - set(self._broker.worker_queue_consumers):
            queue_consumer.stop_polling()
            queue_consumer.end_by(self._until, self._until)
            queue_consumer.hand_back()

    def _wait_for_polls(self, asked_at: float, queue_consumers: list[QueueConsumer]) -> None:
        """Wait until polls in flight have ended, for as long as they have. Any thread."""
        while (now := SYSTEM_CLOCK.monotonic()) < (until := self._polls_until(asked_at)):
            if all(
                queue_consumer.wait_for_polls(min(until, now + GLANCE)) for queue_consumer in queue_consumers
            ):
                return
        for queue_consumer in queue_consumers:
            queue_consumer.end_by(self._until, until)

    def _polls_until(self, asked_at: float) -> float:
        """The monotonic instant until which polls in flight are waited for; SQS has answered them by then."""
        seconds = (
            POLLS_IN_FLIGHT_SECONDS
            if self._hurried
            else self._broker.options.wait_time_seconds + LONGEST_REPLY_GRACE_SECONDS
        )
        return min(asked_at + seconds, self._until)

    def _left(self) -> float:
        return max(0.0, self._until - SYSTEM_CLOCK.monotonic())


class _ReleasedMessages:
    """Those that SQS has released, as far as it has answered, and not handed to this process again."""

    def __init__(self) -> None:
        self._released: set[tuple[str, str]] = set()
        self.forget = subscribe(self._on_event)

    def has(self, delivery: Delivery) -> bool:
        """Whether that delivery's message is one of them. Any thread."""
        return (delivery.queue.name, delivery.facts.message_id) in self._released

    def _on_event(self, event: DeliveryEvent) -> None:
        key = event.delivery.queue, event.delivery.message_id
        if isinstance(event, Released):
            self._released.add(key)
        elif isinstance(event, Received):
            self._released.discard(key)


def _tell_what_became(
    given_back: list[Delivery], orphans: list[Delivery], released: _ReleasedMessages
) -> None:
    """Log which runs are orphaned, and what could not be given back because SQS does not answer."""
    for orphan in orphans:
        told = orphan.facts
        facts = Fields(task=told.task, task_id=told.task_id, message_id=told.message_id)
        if released.has(orphan):
            logger.warning("shutdown: orphaned, handed back (%s)", facts, extra={"sqs": facts})
        else:
            logger.warning(
                "shutdown: orphaned, could not be handed back: comes back after its visibility timeout (%s)",
                facts,
                extra={"sqs": facts},
            )
    kept = [delivery.facts.message_id for delivery in given_back if not released.has(delivery)]
    if kept:
        facts = Fields(message_ids=",".join(kept))
        logger.warning(
            "shutdown: %d messages could not be given back: "
            "they come back after their visibility timeout (%s)",
            len(kept),
            facts,
            extra={"sqs": facts},
        )


def _end(consumer: Any, exit_code: int) -> None:
    """End the orphans and this process, whose main thread waits for them. Their messages are handed back."""
    logger.warning("shutdown: time is up, ending")
    # The pool's, and an embedded beat's.
    for child in active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    worker = consumer.controller
    if worker.pidlock:
        worker.pidlock.release()
    # Not sys.exit: pool threads, and a solo pool's main thread, cannot be made to end.
    os._exit(exit_code)


def _warn_if_too_long(timeout: float) -> None:
    grace, reason = _grace_period()
    longest = max(0.0, grace - MARGIN)
    if timeout > longest:
        logger.warning(
            "shutdown_timeout is %g s, but %s: set at most %g, or messages of running tasks stay hidden "
            "for a visibility timeout",
            timeout,
            reason,
            longest,
        )


def _grace_period() -> tuple[float, str]:
    """Seconds from SIGTERM to SIGKILL, infinite if nobody says, and a clause that says so."""
    told = os.environ.get(GRACE_VARIABLE)
    if told:
        try:
            return float(told), f"{GRACE_VARIABLE} says that SIGKILL comes {told} s after SIGTERM"
        except ValueError:
            logger.warning("expected %s to be a number of seconds, got %r", GRACE_VARIABLE, told)
    if ECS_VARIABLE in os.environ:
        return ECS_STOP_TIMEOUT, (
            f"Amazon ECS kills {ECS_STOP_TIMEOUT} s after SIGTERM, unless stopTimeout is longer "
            f"(then say so in {GRACE_VARIABLE})"
        )
    return math.inf, ""
