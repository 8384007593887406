"""Keeps what this process holds hidden, be it buffered, reserved or running."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from celery_sqs_visibility.aws.errors import HandleIsInvalid, SQSError, Unavailable
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Extended, Lost, emit
from celery_sqs_visibility.delivery.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delivery, Settlement
from celery_sqs_visibility.delivery.trouble import Trouble
from celery_sqs_visibility.delivery.watchdog import HANGS
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: After a bug in the beat itself, seconds until it goes on.
PAUSE_AFTER_BUG = 1.0

#: Threads that help where a beat has many batches, and how many batches are worth one.
HELPERS = 3
BATCHES_EACH = 5

DEADLINE_PASSED = "its visibility timeout ran out before it could be extended"
HORIZON_REACHED = "it was held for the 12 hours that SQS allows"


@dataclass(frozen=True, slots=True, eq=False)
class Hand:
    """A batch that a thread extends, since that monotonic instant."""

    queue: Queue
    batch: list[Delivery]
    since: float


class Heartbeat:
    """One beat of work, `beat`, and the thread that does it when it is due.

    Args:
        ledger: what is held.
        clock: the monotonic clock of its deadlines.
        resume: carries out a settlement that had to wait for an extension in flight.
    """

    def __init__(self, ledger: Ledger, clock: Clock, resume: Callable[[Delivery, Settlement], None]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._resume = resume
        self._changed = threading.Condition()  # guards everything below
        self._wakes_at: float | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._batches: deque[tuple[Queue, list[Delivery]]] = deque()  # due, and in nobody's hand
        self._hands: dict[threading.Thread, Hand] = {}
        self._troubles: dict[str, Trouble] = {}  # by queue

    def start(self) -> None:
        """Start the thread; harmless if it runs. Any thread."""
        with self._changed:
            self._stopping = False
            if self._thread is None:
                self._start_thread()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="sqs-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present call; harmless if it does not run. Does not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def notice(self) -> None:
        """Deliveries were added: something may be due earlier than the thread sleeps. Any thread."""
        due = self._ledger.next_extension()
        with self._changed:
            if due is not None and (self._wakes_at is None or due < self._wakes_at):
                self._changed.notify_all()

    def look_after(self, now: float) -> None:
        """See `watchdog.Ward.look_after`. What was in the hand of who hangs or died is tried again."""
        with self._changed:
            if self._thread is None or self._stopping:
                return
            unwell = [t for t, hand in self._hands.items() if now - hand.since >= HANGS or not t.is_alive()]
            abandoned = [self._hands.pop(thread) for thread in unwell]
            died = not self._thread.is_alive()
            replaced = died or self._thread in unwell
            if replaced:
                self._start_thread()
        if replaced:
            what = "died" if died else "hangs"
            logger.error("the heartbeat's thread %s: another has taken its place", what)
        elif abandoned:
            logger.error("a helper of the heartbeat died or hangs: what it had in hand is tried again")
        for hand in abandoned:
            for delivery in hand.batch:
                self._after(delivery, self._ledger.not_extended(delivery, now))

    def beat(self) -> None:
        """Extend what is due. Called by the heartbeat's thread."""
        due, lost = self._ledger.take_due(self._clock.monotonic())
        for delivery in lost:
            self._tell_lost(delivery, self._why_lapsed(delivery))
        with self._changed:
            self._batches.extend(_batches(due))
            helpers = min(HELPERS, len(self._batches) // BATCHES_EACH)
        for _ in range(helpers):
            threading.Thread(target=self._work_off, name="sqs-heartbeat-helper", daemon=True).start()
        self._work_off()

    def _work_off(self) -> None:
        """Extend batch by batch, beside others that do. The heartbeat's thread, and its helpers."""
        while (hand := self._take_in_hand()) is not None:
            try:
                self._extend(hand)
            except Exception:
                logger.exception("extending stumbled and goes on", extra={"queue": hand.queue.name})

    def _take_in_hand(self) -> Hand | None:
        with self._changed:
            if not self._batches:
                return None
            hand = Hand(*self._batches.popleft(), since=self._clock.monotonic())
            self._hands[threading.current_thread()] = hand
            return hand

    def _put_down(self, hand: Hand) -> bool:
        """Whether it is still this thread's to say what became of them: it may have been given up."""
        with self._changed:
            return self._hands.pop(threading.current_thread(), None) is hand

    def _run(self) -> None:
        while not self._ended():
            try:
                self.beat()
            except Exception:
                logger.exception("heartbeat stumbled and goes on")
                self._rest(PAUSE_AFTER_BUG)
            self._wait()

    def _ended(self) -> bool:
        """Whether to end; then the next `start` makes a new thread."""
        with self._changed:
            if self._thread is not threading.current_thread():
                return True  # another has taken its place
            if self._stopping:
                self._thread = None
            return self._stopping

    def _wait(self) -> None:
        """Sleep until something is due."""
        with self._changed:
            # What was added since the beat is seen here, under the lock that notice() takes.
            self._wakes_at = self._ledger.next_extension()
            timeout = None if self._wakes_at is None else self._wakes_at - self._clock.monotonic()
            if not self._stopping and (timeout is None or timeout > 0):
                self._changed.wait(timeout)
            self._wakes_at = None

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _extend(self, hand: Hand) -> None:
        now = hand.since
        wanted = [(delivery, self._ledger.extension(delivery, now)) for delivery in hand.batch]
        extensions = [(d, seconds) for d, seconds in wanted if d.deadline > now and seconds > 0]
        failed = self._send(hand.queue, extensions).failed if extensions else {}
        if not self._put_down(hand):
            return
        for delivery in hand.batch:
            if not any(delivery is extended for extended, _ in extensions):
                self._not_worth_it(delivery, now)
        if extensions:
            self._tell_trouble(hand.queue, failed.values())
        for position, (delivery, seconds) in enumerate(extensions):
            self._note(delivery, seconds, now + seconds, failed.get(position))

    def _not_worth_it(self, delivery: Delivery, now: float) -> None:
        if delivery.deadline <= now:  # it lapsed while an earlier batch took its time
            self._lose(delivery, self._why_lapsed(delivery))
        else:
            self._after(delivery, self._ledger.not_extensible(delivery, now))

    def _tell_trouble(self, queue: Queue, errors: Iterable[SQSError]) -> None:
        """One line when extending begins to fail, and one when it works again."""
        with self._changed:
            trouble = self._troubles.get(queue.name)
            if trouble is None:
                trouble = Trouble(
                    logger, "cannot extend messages", "extends messages", queue.name, self._clock
                )
                self._troubles[queue.name] = trouble
        # Of a handle that was refused the message's own event tells.
        error = next((error for error in errors if not isinstance(error, HandleIsInvalid)), None)
        if error is None:
            trouble.worked()
        else:
            trouble.failed(error)

    def _send(self, queue: Queue, extensions: list[tuple[Delivery, int]]) -> BatchResult:
        error: SQSError
        try:
            return queue.sqs.change_visibility(queue.url, [(d.handle, seconds) for d, seconds in extensions])
        except SQSError as refusal:
            error = refusal
        except Exception as bug:
            # None of the batch may be left as being extended for ever.
            logger.exception("extending stumbled and goes on", extra={"queue": queue.name})
            error = Unavailable(repr(bug))
        return BatchResult(dict.fromkeys(range(len(extensions)), error))

    def _note(self, delivery: Delivery, seconds: int, deadline: float, error: SQSError | None) -> None:
        if error is None:
            waiting = self._ledger.extended(delivery, deadline)
            emit(Extended(delivery.facts, seconds))
            self._after(delivery, waiting)
        elif isinstance(error, HandleIsInvalid):
            self._lose(delivery, str(error))
        else:
            self._after(delivery, self._ledger.not_extended(delivery, self._clock.monotonic()))

    def _lose(self, delivery: Delivery, reason: str) -> None:
        waiting = self._ledger.refused(delivery)
        if delivery.successor is None:  # otherwise it is the old handle that is lost, and not the message
            self._tell_lost(delivery, reason)
        self._after(delivery, waiting)

    def _why_lapsed(self, delivery: Delivery) -> str:
        if delivery.at_horizon:
            return HORIZON_REACHED
        trouble = self._troubles.get(delivery.queue.name)
        return f"{DEADLINE_PASSED}: {trouble.error}" if trouble and trouble.error else DEADLINE_PASSED

    def _tell_lost(self, delivery: Delivery, reason: str) -> None:
        emit(Lost(delivery.facts, reason))
        if delivery.on_lost is not None:
            try:
                delivery.on_lost()
            except Exception:
                logger.exception("what was to be done about a lost message failed")

    def _after(self, delivery: Delivery, waiting: Settlement | None) -> None:
        if waiting is not None:
            try:
                self._resume(delivery, waiting)
            except Exception:
                # The others of its batch are not to be left as being extended for ever.
                logger.exception("a settlement was lost, and its message comes back")


def _batches(due: dict[Queue, list[Delivery]]) -> Iterator[tuple[Queue, list[Delivery]]]:
    for queue, deliveries in due.items():
        for start in range(0, len(deliveries), BATCH_ENTRIES):
            yield queue, deliveries[start : start + BATCH_ENTRIES]
