"""Polls one queue: one thread, the poller, while the queue is quiet; helpers while batches come back full.

A poll may hang: its connection died silently, or the network swallows everything for a while. To cut it off
early would be wrong, since at SQS it may still take messages, and nobody gets them. So another thread becomes
the poller, until that one hangs as well, and so on, until there is an answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.polls import Arrived, Polls
from celery_sqs_visibility.delivery.receive.reservations import Reservation
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.health import PollingFacts
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: Threads that poll a queue while its batches come back full.
MAX_PARALLEL_POLLS: Final = 12

#: Threads of a queue, those that hang included. More do not help once this many are stuck.
MAX_THREADS: Final = 20

#: SQS may answer with fewer messages than it has. From a poll that was answered at once, without waiting for
#: messages to arrive, this many count as a full batch.
NEARLY_FULL_BATCH: Final = 5
ANSWERED_AT_ONCE_SECONDS: Final = 0.5

#: A FIFO queue is asked for one message at a time, so every message may be one of many. A helper that finds
#: none shows that there are few groups; the next helper is not tried before this time has passed.
HELPER_PAUSE_SECONDS: Final = 1.0


class Receiver:
    """The polling of one queue, once, from `start` to `stop`. No error ends it. Safe to use from any thread.

    Args:
        queue: the queue.
        capacity: shared with the other queues.
        schedule: when to poll; the receiver guards it, so others go through `expect`.
        wait: seconds of a long poll.
        options: what to ask of every receive.
        clock: the monotonic clock.
        arrived: takes the messages, on a polling thread, also after `stop`.
        stopped: called on the poller's thread when it ends, its last poll being over.
        pauses: the queues that are not polled for now; call `wake` after a change.
    """

    def __init__(
        self,
        queue: Queue,
        capacity: ReceiveCapacity,
        schedule: PollSchedule,
        wait: int,
        options: ReceiveOptions,
        clock: Clock,
        arrived: Arrived,
        stopped: Callable[[Queue], None] = lambda _queue: None,
        pauses: Pauses | None = None,
    ) -> None:
        self.queue = queue
        self._capacity = capacity
        self._schedule = schedule
        self._wait = wait
        self._clock = clock
        self._stopped = stopped
        self._pauses = pauses or Pauses(clock)
        self._polls = Polls(queue, capacity, schedule, wait, options, clock, arrived, self._pauses)
        self._lock, self._changed = self._polls.lock, self._polls.changed  # guards everything below, too
        self._started = False
        self._threads: set[threading.Thread] = set()
        self._poller: threading.Thread | None = None  # the other threads help, or hang
        self._no_helper_before = -math.inf
        self._moves_by = math.inf  # the instant by which the poller goes on; not known while capacity lacks

    @property
    def polling(self) -> bool:
        """Whether a poll is in flight, or what it brought is being taken."""
        return bool(self._polls.in_flight)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._polls.stopping

    def start(self) -> None:
        """Start polling; harmless if it polls."""
        with self._lock:
            if self._started or self.stopping:
                return
            self._started = True
            self._capacity.add_queue()
            self._start_poller()

    def stop(self) -> None:
        """Poll no more. Does not wait for polls in flight; their messages still arrive.

        Celery's cold shutdown calls it in a signal handler.
        """
        with self._lock:
            if self.stopping:
                return
            self._polls.stopping = True
            self._changed.notify_all()
            started = self._started
        if started:
            self._capacity.remove_queue(self.queue.name)

    def wake(self) -> None:
        """The queue was paused, or resumed. Polls in flight go on, as after `stop`."""
        with self._lock:
            self._changed.notify_all()

    def wait_for_polls(self, until: float) -> bool:
        """After `stop` or a pause: wait for polls in flight until that instant; whether all are over."""
        return self._polls.wait_until_over(until)

    def expect(self, message_id: str, at: float) -> None:
        """A message of this queue becomes visible at that monotonic instant."""
        with self._lock:
            before = self._schedule.next_poll()
            self._schedule.expect(message_id, at)
            if self._schedule.next_poll() < before:
                self._changed.notify_all()

    def facts(self, now: float) -> PollingFacts:
        """How the polling gets on. Any thread."""
        late, error = max(0.0, now - self._moves_by), self._polls.error
        accepted, paused = self._polls.accepted(now), self._polls.paused
        return PollingFacts(self.queue.name, late, accepted, str(error or ""), paused)

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`. A replaced thread's messages are taken all the same."""
        self._expect_what_is_due(now)
        if not self._started or self._polls.stopping:
            return
        unanswered = self._polls.give_up_overdue(now)
        with self._lock:
            what = None if self._polls.stopping else self._trouble_of_poller()
            if what is None:
                return
            self._start_poller()
        if not unanswered:  # else the outage is logged
            logger.error("a thread that polls %r %s: another takes its place", self.queue.name, what)

    def _trouble_of_poller(self) -> str | None:
        """Why another thread is to take its place. Under the lock."""
        if self._poller is None or not self._poller.is_alive():
            return "died"
        if len(self._threads) >= MAX_THREADS:
            return None
        # Overdue since whenever: there may have been too many threads at first.
        hangs = any(poll.overdue and poll.thread is self._poller for poll in self._polls.in_flight)
        return "hangs" if hangs else None

    def _start_poller(self) -> None:
        self._poller = self._start_thread(self._poll_until_stopped)
        if self._poller is None:
            self._moves_by = min(self._moves_by, self._clock.monotonic())

    def _add_helper(self) -> None:
        with self._lock:
            if not self.stopping and len(self._threads) < MAX_PARALLEL_POLLS:
                self._start_thread(self._help)

    def _start_thread(self, target: Callable[[], None]) -> threading.Thread | None:
        """Under the lock."""
        thread = start_thread(partial(self._run, target), f"sqs-receive-{self.queue.name}")
        if thread is None:
            logger.error("a thread that polls %r could not be started", self.queue.name)
        else:
            self._threads.add(thread)
        return thread

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _poll_until_stopped(self) -> None:
        while self._is_poller():
            try:
                self._poll_when_due()
            except Exception:
                logger.exception("unexpected error while polling %r; continuing", self.queue.name)
                self._rest(pause(1))
        if self._poller is threading.current_thread():
            self._stopped(self.queue)

    def _is_poller(self) -> bool:
        with self._lock:
            return not self.stopping and self._poller is threading.current_thread()

    def _poll_when_due(self) -> None:
        self._moves_by = math.inf
        if self._wait_while_paused() or self._sleep():
            return
        self._expect_what_is_due(self._clock.monotonic())
        reservation = self._reserve(None)
        if reservation is None:
            return
        asked = self._clock.monotonic()
        # After a failure: is there an answer again?
        wait = 0 if self._polls.failures else min(self._wait, reservation.wait)
        self._moves_by = asked + wait
        messages = self._polls.poll(reservation, wait=wait)
        if self._polls.failures:
            self._rest(pause(self._polls.failures))
        elif self._is_there_more(messages, self._clock.monotonic() - asked):
            self._add_helper()

    def _help(self) -> None:
        """Poll while there is capacity and batches come back full."""
        more = True
        while more and not self._polls.halted:
            reservation = self._reserve(0)
            if reservation is None:
                return
            more = self._is_there_more(self._polls.poll(reservation, wait=0, helper=True), 0)
        with self._lock:
            self._no_helper_before = self._clock.monotonic() + HELPER_PAUSE_SECONDS

    def _is_there_more(self, messages: int, seconds: float) -> bool:
        """Whether a second poll is likely to bring something, after one with these messages and duration."""
        if self.queue.fifo:
            return messages > 0 and self._clock.monotonic() >= self._no_helper_before
        return messages >= (BATCH_ENTRIES if seconds >= ANSWERED_AT_ONCE_SECONDS else NEARLY_FULL_BATCH)

    def _reserve(self, timeout: float | None) -> Reservation | None:
        return self._capacity.reserve(
            self.queue.name, timeout, lambda: self._polls.halted, fifo=self.queue.fifo
        )

    def _expect_what_is_due(self, now: float) -> None:
        """Where a message is back and no poll is in flight, the queue waits for no idle queue's turn."""
        if self._polls.in_flight:
            return
        with self._lock:
            due = self._schedule.next_expected()
            if due is None or due > now or self._polls.in_flight or self._polls.halted:
                return
        self._capacity.expect(self.queue.name)

    def _wait_while_paused(self) -> bool:
        """Wait for the end of the queue's pause, or for a stop; whether there was a pause.

        A queue that is paused has no share of the capacity. A stop takes the share, too: hence no condition.
        """
        if not self._polls.paused:
            return False
        self._capacity.remove_queue(self.queue.name)
        try:
            with self._lock:
                while self._polls.paused and not self.stopping:
                    seconds = self._pauses.seconds_left(self.queue.name)
                    self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
                self._schedule.poll_now()
        finally:
            self._capacity.add_queue()
        return True

    def _sleep(self) -> bool:
        """Sleep until the next poll is due, or a stop; whether there was reason to."""
        with self._lock:
            until = self._schedule.next_poll()
            seconds = until - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._moves_by = until
            self._changed.wait_for(lambda: self._polls.halted or self._schedule.next_poll() < until, seconds)
            return True

    def _rest(self, seconds: float) -> None:
        """Send SQS nothing for a while; a stop ends it."""
        with self._lock:
            self._moves_by = self._clock.monotonic() + seconds
            self._changed.wait_for(lambda: self._polls.halted, seconds)
