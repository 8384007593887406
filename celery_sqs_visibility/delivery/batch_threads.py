"""Threads that send batches: as many as there is work for, replaced where they die or hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import AnswerLostError, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: An idle thread ends after this time, if another is idle too.
IDLE_SECONDS: Final = 1.0

#: A thread pauses after a bug, so that one which repeats does not take a processor.
PAUSE_AFTER_BUG_SECONDS: Final = 1.0

UNEXPECTED: Final = "unexpected error in a thread that %s; continuing"

Batch = TypeVar("Batch", bound=Sized)


class Work(Protocol[Batch]):
    """The work of `BatchThreads`. Its lock is held around `due`, `ready` and `take`, not around the rest."""

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a batch; `None` if that is not known."""

    def ready(self) -> int:
        """About how many batches `take` would return now. Called when at least one is due."""

    def take(self, now: float) -> Batch | None:
        """The content of one request; `None` if nothing is due at that monotonic instant."""

    def send(self, batch: Batch, since: float) -> BatchResult:
        """Make the request; `since` is when the batch was taken. An exception fails the whole batch."""

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """The request has returned or was abandoned; `failed` has the errors by position in the batch."""


@dataclass(slots=True, eq=False)
class InProgressBatch(Generic[Batch]):
    """A batch that a thread took at the monotonic instant `since`, and sends: at `seen` it did not hang."""

    batch: Batch
    since: float
    seen: float


class BatchThreads(Generic[Batch]):
    """One thread that waits for the next batch, and more while more are due. Safe to use from any thread.

    Each batch is concluded once: by the thread that sent it, or by the supervisor's where that one hangs.
    The log says what the threads do: `does` is "settles messages", for example.
    """

    def __init__(
        self,
        name: str,
        does: str,
        most: int,
        work: Work[Batch],
        clock: Clock,
        hangs_after: float = HUNG_AFTER_SECONDS,
    ) -> None:
        self._name = name
        self.does = does
        self._most = most
        self._work = work
        self._clock = clock
        self._hangs_after = hangs_after
        #: Guards the work, and everything below. Reentrant, for signal handlers that settle.
        self.lock = threading.RLock()
        self._woken = threading.Condition(self.lock)
        self._started = False
        self._stopping = False
        self._threads: set[threading.Thread] = set()
        self._in_progress: dict[threading.Thread, InProgressBatch[Batch]] = {}

    def start(self) -> None:
        """Start threads from now on, as there is work; if that was done, as `wake`."""
        with self.lock:
            self._started, self._stopping = True, False
            self.wake()

    def stop(self) -> None:
        """End the threads once they have nothing to do; later work starts them again. Does not wait."""
        with self.lock:
            self._stopping = True
            self._woken.notify_all()

    def wake(self) -> None:
        """Make a thread look at the work again: something may be due, now or later."""
        with self.lock:
            now = self._clock.monotonic()
            self._wake(now, self._work.due(now))

    def wake_for(self, due: float | None) -> None:
        """As `wake`, where the caller knows what the work says: its next is due at that monotonic instant."""
        with self.lock:
            self._wake(self._clock.monotonic(), due)

    def _wake(self, now: float, due: float | None) -> None:
        if due is None or not self._started:
            return
        # Work that is due later needs no further thread: busy threads look at it when they return.
        needed = self._work.ready() if due <= now else 0
        if not self._threads or (self._idle() < needed and len(self._threads) < self._most):
            self._start_thread()
        else:
            self._woken.notify()

    def has_thread(self) -> bool:
        """Start a thread if there is none; `False` where the system refuses it."""
        with self.lock:
            self._started = True
            return bool(self._threads) or self._add_thread()

    def send_next(self) -> bool:
        """Send one batch on this thread; `False` if none is due."""
        with self.lock:
            now = self._clock.monotonic()
            batch = self._work.take(now)
            if batch is None:
                return False
            mine = self._in_progress[threading.current_thread()] = InProgressBatch(batch, now, now)
            self._wake(now, self._work.due(now))  # another thread takes the work that is left
        failed = self._send(mine)
        with self.lock:
            if self._in_progress.pop(threading.current_thread(), None) is not mine:
                return True  # it took too long, and was abandoned
        self._conclude(mine, failed)
        return True

    def in_progress(self) -> list[InProgressBatch[Batch]]:
        """The batches that threads send now. Under the lock, none of them is concluded before it is free."""
        return list(self._in_progress.values())

    def progress(self) -> None:
        """The request that the calling thread makes goes on, though it may take long."""
        with self.lock:
            if (mine := self._in_progress.get(threading.current_thread())) is not None:
                mine.seen = self._clock.monotonic()

    def late(self, now: float) -> float:
        """For how many seconds work has been due while no thread gets on; 0 while one does. Any thread."""
        with self.lock:
            due = self._work.due(now)
            self.wake()  # the work may have taken this for a thread, which waits until then
            moving = any(now - batch.seen < self._hangs_after for batch in self._in_progress.values())
            return 0.0 if due is None or moving or not self._started else max(0.0, now - due)

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`. A batch that a stuck thread sends fails, and is tried again."""
        with self.lock:
            stuck = self._threads and {thread for thread in self._threads if self._is_stuck(thread, now)}
            if not stuck:
                self._wake(now, self._work.due(now))  # all may be busy for longer than due work can wait
                return
            self._threads -= stuck
            abandoned = [self._in_progress.pop(thread) for thread in stuck if thread in self._in_progress]
            self._start_thread()
        for thread in stuck:
            state = "hangs" if thread.is_alive() else "died"
            log_safely(logger.error, "a thread that %s %s; another takes its place", self.does, state)
        for batch in abandoned:
            self._conclude(batch, _all_of(batch.batch, AnswerLostError("no answer")))
        self.wake()

    def _is_stuck(self, thread: threading.Thread, now: float) -> bool:
        batch = self._in_progress.get(thread)
        return not thread.is_alive() or (batch is not None and now - batch.seen >= self._hangs_after)

    def _start_thread(self) -> None:
        if not self._add_thread():
            log_safely(
                logger.error, "cannot start a thread that %s; it is tried again in a moment", self.does
            )

    def _add_thread(self) -> bool:
        """Under the lock, which the new thread takes first."""
        thread = start_thread(self._run, self._name)
        if thread is not None:
            self._threads.add(thread)
        return thread is not None

    def _run(self) -> None:
        while self._wait():
            try:
                self.send_next()
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, UNEXPECTED, self.does)
                with self.lock:
                    self._woken.wait(PAUSE_AFTER_BUG_SECONDS)

    def _wait(self) -> bool:
        """Wait until something is due; `False` if this thread is to end."""
        thread = threading.current_thread()
        with self.lock:
            idle_until = self._clock.monotonic() + IDLE_SECONDS
            while thread in self._threads:  # else it was replaced
                now = self._clock.monotonic()
                due = self._work.due(now)
                if due is not None and due <= now:
                    return True
                spare = self._idle() > 1
                if (self._stopping and due is None) or (spare and now >= idle_until):
                    self._threads.discard(thread)
                    self._woken.notify()  # it may have been woken for work that is left to another
                    return False
                instants = [] if due is None else [due]
                instants += [idle_until] if spare else []
                self._woken.wait(min(instants) - now if instants else None)
            return False

    def _idle(self) -> int:
        return len(self._threads) - len(self._in_progress)

    def _send(self, batch: InProgressBatch[Batch]) -> Mapping[int, SQSError]:
        """Make the request: the errors by position."""
        try:
            return self._work.send(batch.batch, batch.since).failed
        except SQSError as error:
            return _all_of(batch.batch, error)
        except Exception as bug:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, UNEXPECTED, self.does)
            return _all_of(batch.batch, AnswerLostError(repr(bug)))

    def _conclude(self, batch: InProgressBatch[Batch], failed: Mapping[int, SQSError]) -> None:
        try:
            self._work.conclude(batch.batch, batch.since, failed)
        except Exception:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, UNEXPECTED, self.does)


def _all_of(batch: Sized, error: SQSError) -> dict[int, SQSError]:
    return dict.fromkeys(range(len(batch)), error)
