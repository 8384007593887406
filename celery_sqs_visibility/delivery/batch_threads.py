"""Threads that send batches, as many as there is work for, replaced where they die or hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.supervisor import HANGS
from celery_sqs_visibility.errors import SQSError, UnavailableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: A thread that found nothing to do for that many seconds ends, if another is free.
LINGER: Final = 1.0

#: Seconds until a thread goes on that stumbled over a bug.
PAUSE_AFTER_BUG: Final = 1.0

Batch = TypeVar("Batch", bound=Sized)


class Work(Protocol[Batch]):
    """What a crew does. `due`, `ready` and `take` are called under the crew's lock, the rest outside it."""

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` has something; `None` if that is not known."""
        ...

    def ready(self) -> int:
        """Where something is due: for how many threads, about."""
        ...

    def take(self, now: float) -> Batch | None:
        """What one request carries, if there is anything to do at that monotonic instant."""
        ...

    def send(self, batch: Batch, since: float) -> BatchResult:
        """Make the request; `since` is when the batch was taken. Whatever it raises failed for all."""
        ...

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """The request is over, or given up; these positions of the batch were in vain."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class InProgressBatch(Generic[Batch]):
    """A batch that a thread has in hand, since that monotonic instant."""

    batch: Batch
    since: float


class BatchThreads(Generic[Batch]):
    """One thread that minds the time, and more while there is more to do. Safe to use from any thread.

    Each batch is concluded once: by the thread that sent it, or by the supervisor's where that one hangs.

    Args:
        name: of the threads.
        does: what they do, for the log: "settles messages".
        most: how many there may be.
        work: what to do.
        clock: the monotonic clock.
    """

    def __init__(self, name: str, does: str, most: int, work: Work[Batch], clock: Clock) -> None:
        self._name = name
        self._does = does
        self._most = most
        self._work = work
        self._clock = clock
        #: Guards the work, and everything below. Reentrant, for signal handlers that settle.
        self.lock = threading.RLock()
        self._called = threading.Condition(self.lock)
        self._started = False
        self._stopping = False
        self._threads: set[threading.Thread] = set()
        self._hands: dict[threading.Thread, InProgressBatch[Batch]] = {}

    def start(self) -> None:
        """Have threads from now on, as there is work; harmless if there are."""
        with self.lock:
            self._started, self._stopping = True, False
            self.call()

    def stop(self) -> None:
        """End the threads once they have nothing to do; later work starts them again. Does not wait."""
        with self.lock:
            self._stopping = True
            self._called.notify_all()

    def call(self) -> None:
        """There may be something to do, now or later."""
        with self.lock:
            now = self._clock.monotonic()
            due = self._work.due(now)
            if due is None or not self._started:
                return
            # For what is due later none: those that are busy now mind the time when they come back.
            needed = self._work.ready() if due <= now else 0
            if not self._threads or (self._free() < needed and len(self._threads) < self._most):
                self._start_thread()
            else:
                self._called.notify()

    def turn(self) -> bool:
        """Send one batch on this thread, if there is one to send; whether there was."""
        with self.lock:
            now = self._clock.monotonic()
            batch = self._work.take(now)
            if batch is None:
                return False
            hand = self._hands[threading.current_thread()] = InProgressBatch(batch, now)
            self.call()  # somebody else sees to what is left
        failed = self._send(hand)
        with self.lock:
            if self._hands.pop(threading.current_thread(), None) is not hand:
                return True  # it took too long, and was given up
        self._conclude(hand, failed)
        return True

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Ward.look_after`. What was in the hands of who hangs or died was in vain."""
        with self.lock:
            unwell = {thread for thread in self._threads if self._is_unwell(thread, now)}
            self._threads -= unwell
            abandoned = [self._hands.pop(thread) for thread in unwell if thread in self._hands]
            if unwell:
                self._start_thread()
        for thread in unwell:
            what = "hangs" if thread.is_alive() else "died"
            log_safely(logger.error, "a thread that %s %s: another has taken its place", self._does, what)
        for hand in abandoned:
            self._conclude(hand, _all_of(hand.batch, UnavailableError("no answer")))
        self.call()  # all may be busy for longer than what is due can wait

    def _is_unwell(self, thread: threading.Thread, now: float) -> bool:
        hand = self._hands.get(thread)
        return not thread.is_alive() or (hand is not None and now - hand.since >= HANGS)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads just now, or the interpreter is ending
            self._threads.discard(thread)
            log_safely(logger.exception, "a thread that %s could not be started, and will be", self._does)

    def _run(self) -> None:
        while self._wait():
            try:
                self.turn()
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, "a thread that %s stumbled and goes on", self._does)
                with self.lock:
                    self._called.wait(PAUSE_AFTER_BUG)

    def _wait(self) -> bool:
        """Wait until something is due; `False` if this thread is to end."""
        thread = threading.current_thread()
        with self.lock:
            idle_since = self._clock.monotonic()
            while thread in self._threads:  # else another has taken its place
                now = self._clock.monotonic()
                due = self._work.due(now)
                if due is not None and due <= now:
                    return True
                spare = self._free() > 1
                if (self._stopping and due is None) or (spare and now >= idle_since + LINGER):
                    self._threads.discard(thread)
                    return False
                instants = [] if due is None else [due]
                instants += [idle_since + LINGER] if spare else []
                self._called.wait(min(instants) - now if instants else None)
            return False

    def _free(self) -> int:
        return len(self._threads) - len(self._hands)

    def _send(self, hand: InProgressBatch[Batch]) -> Mapping[int, SQSError]:
        """What failed, by position."""
        try:
            return self._work.send(hand.batch, hand.since).failed
        except SQSError as error:
            return _all_of(hand.batch, error)
        except Exception as bug:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, "a thread that %s stumbled and tries again", self._does)
            return _all_of(hand.batch, UnavailableError(repr(bug)))

    def _conclude(self, hand: InProgressBatch[Batch], failed: Mapping[int, SQSError]) -> None:
        try:
            self._work.conclude(hand.batch, hand.since, failed)
        except Exception:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, "a thread that %s stumbled and goes on", self._does)


def _all_of(batch: Sized, error: SQSError) -> dict[int, SQSError]:
    return dict.fromkeys(range(len(batch)), error)
