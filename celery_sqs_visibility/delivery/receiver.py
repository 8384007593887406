"""Polls one queue: one thread while it is quiet, more while its batches come back full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from celery_sqs_visibility.aws.errors import OverLimit, SQSError, Throttled, Unavailable
from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.room import CROWDED_WAIT, Reservation, Room
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.pauses import pause
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: Threads that poll a queue while its batches come back full.
MAX_PARALLEL = 6

#: A thread that waits for room looks at the world again after that many seconds, whatever happened.
PATIENCE = 5.0

#: Errors that pass by themselves; for the others somebody has to repair something.
HEALING = (Unavailable, Throttled, OverLimit)

#: Takes what a poll brought: the messages, the monotonic instants before and after the call.
Arrived = Callable[[Queue, Sequence[ReceivedMessage], float, float], None]


class Receiver:
    """The polling of one queue, once, from `start` to `stop`. No error ends it.

    Args:
        queue: what to poll.
        room: the reservation it shares with the other queues.
        schedule: when to poll; guarded by the receiver's lock, so others go through `expect`.
        wait: seconds of a long poll.
        options: what to ask of every receive.
        clock: for the schedule.
        arrived: takes the messages; called from the polling thread, also after `stop`.
        stopped: called from the polling thread when it ends, its last poll being over.
    """

    def __init__(
        self,
        queue: Queue,
        room: Room,
        schedule: PollSchedule,
        wait: int,
        options: ReceiveOptions,
        clock: Clock,
        arrived: Arrived,
        stopped: Callable[[Queue], None] = lambda _queue: None,
    ) -> None:
        self.queue = queue
        self._room = room
        self._schedule = schedule
        self._wait = wait
        self._options = options
        self._clock = clock
        self._arrived = arrived
        self._stopped = stopped
        self._changed = threading.Condition()  # guards everything below, and the schedule
        self._threads: set[threading.Thread] = set()
        self._joined = False
        self._in_flight = 0
        self._failures = 0
        self._trouble: type[SQSError] | None = None
        self.stopping = False

    def start(self) -> None:
        """Start polling; harmless if it does."""
        with self._changed:
            if self._joined or self.stopping:
                return
            self._joined = True
            self._room.join()
            self._spawn(self._poll_on)

    def stop(self) -> None:
        """Poll no more. Does not wait for polls in flight; what they bring still arrives.

        Celery's cold shutdown calls it in a signal handler, on the main thread, which may hold the lock just
        now: it is reentrant, as a Condition's is by default.
        """
        with self._changed:
            if self.stopping:
                return
            self.stopping = True
            self._changed.notify_all()
            joined = self._joined
        if joined:
            self._room.leave()

    def settle_down(self, until: float) -> bool:
        """After `stop`: wait for the polls in flight, until that monotonic instant; whether all returned."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._in_flight, max(0.0, until - self._clock.monotonic())
            )

    def expect(self, message_id: str, at: float) -> None:
        """A message of this queue becomes visible at that monotonic instant. Any thread."""
        with self._changed:
            before = self._schedule.next_poll()
            self._schedule.expect(message_id, at)
            if self._schedule.next_poll() < before:
                self._changed.notify_all()

    def poll(self, reservation: Reservation, *, wait: int) -> int:
        """One request and what follows from it; how many messages it brought. A polling thread."""
        messages: list[ReceivedMessage] = []
        with self._changed:
            if self.stopping:  # now, or who waits for the polls in flight would miss this one
                self._room.received(reservation, 0)
                return 0
            self._in_flight += 1
        started = self._clock.monotonic()
        try:
            messages = self.queue.sqs.receive(self.queue.url, reservation.messages, wait, self._options)
        except SQSError as error:
            self._failed(error)
        else:
            self._recovered([message["MessageId"] for message in messages])
        finally:
            self._room.received(reservation, len(messages))
            try:
                if messages:
                    self._arrived(self.queue, messages, started, self._clock.monotonic())
            finally:
                with self._changed:
                    self._in_flight -= 1
                    self._changed.notify_all()
        return len(messages)

    def _poll_on(self) -> None:
        while not self.stopping:
            try:
                self._turn()
            except Exception:
                logger.exception("receiving stumbled and goes on", extra={"queue": self.queue.name})
                self._rest(pause(1, heals=True))
        self._stopped(self.queue)

    def _turn(self) -> None:
        if self._sleep():
            return
        reservation = self._room.reserve(self.queue.name, PATIENCE, lambda: self.stopping)
        if reservation is None:
            return
        wait = min(self._wait, CROWDED_WAIT) if reservation.crowded else self._wait
        brought = self.poll(reservation, wait=wait)
        if self._failures:
            self._rest(pause(self._failures, heals=issubclass(self._trouble or SQSError, HEALING)))
        elif brought == BATCH_ENTRIES:
            self._call_for_help()

    def _call_for_help(self) -> None:
        with self._changed:
            # Of a FIFO queue's group SQS hands out nothing while a batch of it is held: one poller is enough.
            if not self.stopping and not self.queue.fifo and len(self._threads) < MAX_PARALLEL:
                self._spawn(self._help)

    def _help(self) -> None:
        """Poll while there is room and batches come back full."""
        brought = BATCH_ENTRIES
        while brought == BATCH_ENTRIES and not self.stopping:
            reservation = self._room.reserve(self.queue.name, 0, lambda: self.stopping)
            if reservation is None:
                return
            brought = self.poll(reservation, wait=0)

    def _spawn(self, target: Callable[[], None]) -> None:
        def run() -> None:
            try:
                target()
            finally:
                with self._changed:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"sqs-receive-{self.queue.name}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _sleep(self) -> bool:
        """Sleep as the schedule says, until it or a stop says otherwise; whether there was reason to."""
        with self._changed:
            until = self._schedule.next_poll()
            seconds = until - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._changed.wait_for(lambda: self.stopping or self._schedule.next_poll() < until, seconds)
            return True

    def _rest(self, seconds: float) -> None:
        """Leave SQS alone for a while; a stop ends it."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, seconds)

    def _failed(self, error: SQSError) -> None:
        with self._changed:
            self._failures += 1
            changed = self._trouble is not type(error)
            self._trouble = type(error)
        if changed:
            logger.error(
                "cannot receive from SQS and will try again: %s", error, extra={"queue": self.queue.name}
            )

    def _recovered(self, message_ids: Sequence[str]) -> None:
        with self._changed:
            failures, self._failures = self._failures, 0
            self._trouble = None
            self._schedule.polled(self._clock.monotonic(), message_ids)
        if failures:
            logger.warning(
                "receives from SQS again, after %d failures", failures, extra={"queue": self.queue.name}
            )
