"""The pump: one lock, and the threads that make all requests of a process for which no caller waits.

Each kind of request has a lane, which knows when its next batch is due and how many may be in flight. Any
free thread takes the batch that is due first. One thread is always free to wait for the next batch, so no
batch waits for the answer to another.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import AnswerLostError, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS

logger = logging.getLogger(__name__)

#: An idle thread ends after this time if another one is idle, too.
IDLE_SECONDS: Final = 1.0

#: A lane pauses after a bug, so that a recurring bug does not take up a processor.
PAUSE_AFTER_BUG_SECONDS: Final = 1.0

UNEXPECTED: Final = "unexpected error in a thread that %s; continuing"

Batch = TypeVar("Batch", bound=Sized)


class Work(Protocol[Batch]):
    """The work of a lane. The pump calls `due`, `ready` and `take` under its lock, the others without it."""

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a batch; `None` if it is not known."""

    def ready(self) -> int:
        """About how many batches `take` would return now, given that one is due."""

    def take(self, now: float) -> Batch | None:
        """Take the content of one request; `None` if nothing is due at that monotonic instant."""

    def send(self, batch: Batch, since: float) -> BatchResult:
        """Make the request of a batch taken at `since`. An exception fails the whole batch."""

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """End a batch whose request has returned or was abandoned; `failed` has errors by position."""


class Flushed(Protocol):
    """Counters of a lane's unfinished work and of flushes in progress, while which nothing lingers."""

    unfinished: int
    flushing: int


@dataclass(slots=True, eq=False)
class InProgressBatch(Generic[Batch]):
    """A batch that a thread took at the monotonic instant `since`, and that made progress at `seen`."""

    batch: Batch
    since: float
    seen: float


class Lane(Generic[Batch]):
    """One kind of request. Any thread.

    Each batch is concluded once: by the thread that sent it, or by the one that finds it hanging. `duty`
    names the lane's work in the log: "settles messages", for example.
    """

    def __init__(self, pump: Pump, duty: str, most: int, work: Work[Batch], hangs_after: float) -> None:
        self.duty = duty
        self.lock: Final = pump.lock
        self._pump = pump
        self._most = most
        self._work = work
        self._hangs_after = hangs_after
        # Guarded by the lock:
        self.started = False
        self.stopping = False
        self.next_due = math.inf  # the instant at which the next batch is due
        self.jobs: dict[threading.Thread, InProgressBatch[Batch]] = {}  # in flight

    def start(self) -> None:
        """Start the lane, so that threads do its work; wake them if it was started before."""
        with self.lock:
            self.started, self.stopping = True, False
            self._pump.add(self)
            self.wake()

    def stop(self) -> None:
        """Let threads end when they have nothing left to do. Does not wait. Later work restarts them."""
        with self.lock:
            self.stopping = True
            self.refresh(self._pump.now())
            self._pump.notify_all()

    def wake(self) -> None:
        """Make a thread check the work again, because something may be due, now or later. Under the lock."""
        now = self._pump.now()
        self.wake_for(self._work.due(now), now)

    def wake_for(self, due: float | None, now: float) -> None:
        """Do what `wake` does, given the work's `due`."""
        self.next_due = math.inf if due is None else due
        if due is not None and self.started:
            self._pump.wake(self, now)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait up to `timeout` seconds until the condition is true, checked at the end of each batch.

        Returns whether it is true. Under the lock.
        """
        return self._pump.wait_until(condition, timeout)

    def flush(self, pending: Flushed, timeout: float) -> bool:
        """Send everything without lingering. Returns whether all has ended within `timeout` seconds."""
        with self.lock:
            if not pending.unfinished:
                return True
            pending.flushing += 1
            self.wake()
            try:
                return self.wait_until(lambda: not pending.unfinished, timeout)
            finally:
                pending.flushing -= 1

    def has_thread(self) -> bool:
        """Make sure that there is a thread. Returns `False` if the system refuses one. Under the lock."""
        self.started = True
        self._pump.add(self)
        return self._pump.has_thread()

    def send_next(self) -> bool:
        """Send one batch on this thread. Returns `False` if none is due."""
        with self.lock:
            job = self.take(self._pump.now())
        if job is not None:
            self.carry_out(job)
        return job is not None

    def take(self, now: float) -> InProgressBatch[Batch] | None:
        """Take the next batch, for the calling thread to carry out. Under the lock."""
        batch = self._work.take(now)
        if batch is None:
            return None
        job = self.jobs[threading.current_thread()] = InProgressBatch(batch, now, now)
        return job

    def carry_out(self, job: InProgressBatch[Batch]) -> None:
        """Send the batch and conclude it, unless it was abandoned meanwhile."""
        failed = self._send(job)
        with self.lock:
            if self.jobs.pop(threading.current_thread(), None) is not job:
                return
        self.conclude(job, failed)

    def conclude(self, job: InProgressBatch[Batch], failed: Mapping[int, SQSError]) -> None:
        """Tell the work the result of its request, then wake the threads that wait for it."""
        try:
            self._work.conclude(job.batch, job.since, failed)
        except (Exception, SystemExit):  # noqa: BLE001 - it is logged
            log_safely(logger.exception, UNEXPECTED, self.duty)
        if self._pump.waiting:
            with self.lock:
                self._pump.notify_waiting()

    def in_progress(self) -> list[InProgressBatch[Batch]]:
        """The batches in flight. None is concluded while the caller holds the lock."""
        return list(self.jobs.values())

    def progress(self) -> None:
        """Note that the calling thread's request makes progress, though it may take long."""
        with self.lock:
            if (mine := self.jobs.get(threading.current_thread())) is not None:
                mine.seen = self._pump.now()

    def late(self, now: float) -> float:
        """For how many seconds work has been due without progress; 0 while a thread makes progress."""
        with self.lock:
            self.wake()  # a thread that could not be started before may start now
            moving = any(now - job.seen < self._hangs_after for job in self.jobs.values())
            return 0.0 if moving or not self.started else max(0.0, now - self.next_due)

    @property
    def room(self) -> int:
        """How many more batches may be in flight."""
        return self._most - len(self.jobs)

    @property
    def wanted(self) -> int:
        """How many threads could send a batch now, given that one is due."""
        return min(self._work.ready(), self.room)

    @property
    def over(self) -> bool:
        """Whether the pump can forget the lane until it is woken again."""
        return self.stopping and self.next_due == math.inf and not self.jobs

    def refresh(self, now: float) -> None:
        """Ask the work when its next batch is due. Under the lock."""
        self.next_due = now + PAUSE_AFTER_BUG_SECONDS  # in case `due` raises
        due = self._work.due(now)
        self.next_due = math.inf if due is None else due
        if due is not None and self.stopping:
            self._pump.add(self)  # it may have been forgotten while its last batch was concluded

    def abandon(
        self, threads: set[threading.Thread], now: float
    ) -> list[tuple[threading.Thread, InProgressBatch[Batch]]]:
        """Take the batches from threads that died or hang at that instant. Under the lock.

        The caller then calls `fail` with each.
        """
        stuck = [
            thread
            for thread, job in self.jobs.items()
            if thread in threads and (now - job.seen >= self._hangs_after or not thread.is_alive())
        ]
        return [(thread, self.jobs.pop(thread)) for thread in stuck]

    def fail(self, thread: threading.Thread, job: InProgressBatch[Batch]) -> None:
        """Fail a batch that was taken from its thread, so that it is retried."""
        state = "hangs" if thread.is_alive() else "died"
        log_safely(logger.error, "a thread that %s %s; another takes its place", self.duty, state)
        self.conclude(job, _all_of(job.batch, AnswerLostError("no answer")))
        with self.lock:
            self.wake()

    def _send(self, job: InProgressBatch[Batch]) -> Mapping[int, SQSError]:
        """Make the request. Returns the errors by position."""
        try:
            return self._work.send(job.batch, job.since).failed
        except SQSError as error:
            return _all_of(job.batch, error)
        except Exception as bug:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, UNEXPECTED, self.duty)
            return _all_of(job.batch, AnswerLostError(repr(bug)))


class Pump:
    """The threads of all lanes. Any thread of the process that made it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.now = clock.monotonic
        #: Guards the lanes, their work, and everything below.
        self.lock = threading.Lock()
        self._woken = threading.Condition(self.lock)  # threads that wait for what is due
        self._concluded = threading.Condition(self.lock)  # other threads, which wait for the end of batches
        self.waiting = 0  # the number of those threads
        self._lanes: dict[Lane[Any], None] = {}  # the lanes that the threads work for
        self._threads: set[threading.Thread] = set()
        self._busy: set[threading.Thread] = set()  # the threads that have a batch
        self._wakes_at = math.inf  # the instant by which a free thread checks the lanes
        self._refused: Lane[Any] | None = None  # a lane for which no thread could be started, to be logged

    def lane(
        self, duty: str, most: int, work: Work[Batch], hangs_after: float = HUNG_AFTER_SECONDS
    ) -> Lane[Batch]:
        """Create a lane with at most `most` batches in flight. The caller starts it."""
        return Lane(self, duty, most, work, hangs_after)

    def replace_stuck(self, now: float) -> None:
        """Replace threads that died or hang at that instant, and fail their batches."""
        with self.lock:
            busy = [lane for lane in self._lanes if lane.jobs]
            abandoned = [(lane, *each) for lane in busy for each in lane.abandon(self._threads, now)]
            gone = {thread for _, thread, _ in abandoned}
            gone.update(thread for thread in self._threads if not thread.is_alive())
            self._threads -= gone
            self._busy -= gone
            if gone or not self._threads:
                self._provide()
        for lane, thread, job in abandoned:
            lane.fail(thread, job)
        self._log_refused()

    # For lanes, under the lock.

    def wake(self, lane: Lane[Any], now: float) -> None:
        """Wake or start a thread for the lane's work, which is due now or later."""
        if lane.stopping:
            self._lanes[lane] = None  # it may have been forgotten
        free = len(self._threads) - len(self._busy)
        if free and lane.next_due > now:
            if lane.next_due < self._wakes_at:
                self._woken.notify()
        elif free and free >= lane.wanted:
            self._woken.notify()
        elif not self._add_thread():  # a new thread takes a batch, and checks whether there are more
            self._woken.notify()
            self._refused = lane

    def add(self, lane: Lane[Any]) -> None:
        """Let the threads work for the lane."""
        self._lanes[lane] = None

    def has_thread(self) -> bool:
        """Whether there is a thread, or one could be started."""
        return bool(self._threads) or self._add_thread()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until the condition is true, checked at the end of each batch. Returns whether it is."""
        self.waiting += 1
        try:
            return self._concluded.wait_for(condition, timeout)
        finally:
            self.waiting -= 1

    def notify_waiting(self) -> None:
        """Wake the threads that wait for the end of batches."""
        self._concluded.notify_all()

    def notify_all(self) -> None:
        """Wake all threads, because a lane is being stopped."""
        self._woken.notify_all()
        self.notify_waiting()

    def _provide(self) -> None:
        """Make a free thread take a batch that is due, or wait for the next."""
        if (lane := self._first()) is not None:
            self.wake(lane, self.now())

    def _add_thread(self) -> bool:
        """Start a thread, which first takes the lock. Under the lock."""
        thread = start_thread(self._run, "sqs-pump")
        if thread is not None:
            self._threads.add(thread)
        return thread is not None

    def _run(self) -> None:
        thread = threading.current_thread()
        lane: Lane[Any] | None = None  # the lane of the thread's last batch
        while True:
            try:
                with self.lock:
                    self._busy.discard(thread)
                    if lane is not None:
                        lane.refresh(self.now())
                    if (lane := self._wait(thread)) is None:
                        return
                    job = self._take(lane, thread)
                if job is not None:
                    lane.carry_out(job)
            except Exception:  # noqa: BLE001 - it is logged
                log_safely(logger.exception, UNEXPECTED, "works" if lane is None else lane.duty)
                lane = None
            self._log_refused()

    def _take(self, lane: Lane[Any], thread: threading.Thread) -> InProgressBatch[Any] | None:
        """Take the lane's next batch. Another thread is made to take further ones, or to wait for them."""
        now = self.now()
        lane.next_due = now + PAUSE_AFTER_BUG_SECONDS  # in case `take` raises
        job = lane.take(now)
        lane.refresh(now)
        if job is not None:
            self._busy.add(thread)
            self._provide()
        return job

    def _wait(self, thread: threading.Thread) -> Lane[Any] | None:
        """Wait until a batch is due. Returns its lane; `None` if this thread is to end."""
        idle_until = self.now() + IDLE_SECONDS
        while thread in self._threads:  # otherwise it was replaced
            now, lane = self.now(), self._first()
            if lane is not None and lane.next_due <= now:
                return lane
            spare = len(self._threads) - len(self._busy) > 1
            if not self._lanes or (spare and now >= idle_until):
                self._threads.discard(thread)
                self._woken.notify()  # this thread may have been woken for work, which another must take now
                return None
            until = min(math.inf if lane is None else lane.next_due, idle_until if spare else math.inf)
            self._wakes_at = until
            self._woken.wait(None if until == math.inf else until - now)
            self._wakes_at = math.inf  # if another thread is waiting, this costs only a needless wake-up
        return None

    def _first(self) -> Lane[Any] | None:
        """The lane with the earliest batch that may be sent. Forgets lanes that are over."""
        first, due, over = None, math.inf, []
        for lane in self._lanes:
            if lane.next_due < due:
                if lane.room > 0:
                    first, due = lane, lane.next_due
            elif lane.stopping and lane.over:
                over.append(lane)
        for lane in over:
            del self._lanes[lane]
        return first

    def _log_refused(self) -> None:
        if self._refused is None:
            return
        with self.lock:
            lane, self._refused = self._refused, None
        if lane is not None:
            log_safely(
                logger.error, "cannot start a thread that %s; it is tried again in a moment", lane.duty
            )


def _all_of(batch: Sized, error: SQSError) -> dict[int, SQSError]:
    return dict.fromkeys(range(len(batch)), error)
