"""Settlements on their way to SQS: coalesced into batches, sent by a few threads, retried by entry."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from celery_sqs_visibility.aws.errors import HandleIsInvalid, RequestRefused, SQSError, Unavailable
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import (
    DeadLetter,
    Delete,
    Delivery,
    Hide,
    Park,
    Release,
    Settlement,
)
from celery_sqs_visibility.delivery.trouble import Trouble
from celery_sqs_visibility.delivery.watchdog import HANGS
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.pauses import pause
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN

logger = logging.getLogger(__name__)

THREADS = 3

#: What the log says of each kind of request when it fails, and when it works again.
SENTENCES: Mapping[type[Settlement], tuple[str, str]] = {
    Delete: ("cannot delete messages", "deletes messages"),
    DeadLetter: ("cannot send dead letters", "sends dead letters"),
    Hide: ("cannot hide or release messages", "hides and releases messages"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A settlement to be carried out.

    Attributes:
        delivery: what it settles; the ledger has let go of it.
        settlement: anything but `Lapse`, which needs no request.
        since: the monotonic instant from which it waits for company.
        failures: how often it was tried in vain.
    """

    delivery: Delivery
    settlement: Settlement
    since: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """What may share a batch: one queue, one kind of request."""

    queue: Queue
    kind: type[Settlement]

    @property
    def batch(self) -> int:
        """How many jobs one request carries."""
        return 1 if self.kind is DeadLetter else BATCH_ENTRIES

    @property
    def in_order(self) -> bool:
        """Whether one request waits for the other: copies in a FIFO queue stay in the order they arrive."""
        return self.kind is DeadLetter and self.queue.fifo


@dataclass(frozen=True, slots=True, eq=False)
class Hand:
    """A batch that a thread is sending, since that monotonic instant."""

    lane: Lane
    batch: list[Job]
    since: float


#: Errors after which nothing is tried again.
FINAL = (HandleIsInvalid, RequestRefused)

#: Told from a settler's thread that a job is over: with the error if it could not be done, and the
#: instant from which the delay of a visibility change counts.
Settled = Callable[[Delivery, Settlement, SQSError | None, float], None]

#: Sends a dead letter, from a settler's thread. The caller of `Settler` then submits what remains to be done.
SendDeadLetter = Callable[[Delivery, DeadLetter], None]


class Settler:
    """Sends settlements. `submit` may be called from any thread and does not block.

    A job that fails is tried again, in whatever batch it finds, until its delivery's deadline.

    Args:
        window: seconds a job waits for company.
        clock: the monotonic clock of the deadlines.
        settled: is told how each job ended.
        send_dead_letter: sends the copy of a message that is given up.
    """

    def __init__(
        self, window: float, clock: Clock, settled: Settled, send_dead_letter: SendDeadLetter
    ) -> None:
        self._window = window
        self._clock = clock
        self._settled = settled
        self._send_dead_letter = send_dead_letter
        lock = threading.RLock()  # guards everything below; reentrant, for signal handlers that settle
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._lanes: dict[Lane, deque[Job]] = {}
        self._later: list[tuple[float, int, Job]] = []  # heap of failed jobs: (not before, tie-break, job)
        self._ties = itertools.count()
        self._unfinished = 0
        self._hurried = 0  # flushes under way: nothing waits for company then
        self._started = False
        self._stopping = False
        self._threads: dict[int, threading.Thread] = {}  # those that run, by number
        self._in_hand: dict[threading.Thread, Hand] = {}
        self._troubles: dict[Lane, Trouble] = {}

    def start(self) -> None:
        """Have threads from now on; harmless if there are."""
        with self._work:
            self._started, self._stopping = True, False
            self._wake_threads()

    def stop(self) -> None:
        """End the threads once they have nothing to do; a later job starts them again. Does not wait."""
        with self._work:
            self._stopping = True
            self._work.notify_all()

    def submit(self, delivery: Delivery, settlement: Settlement) -> None:
        """Do that to the delivery, soon."""
        with self._work:
            self._unfinished += 1
            self._enqueue(Job(delivery, settlement, self._clock.monotonic()))
            if self._started and (self._stopping or not self._threads):
                self._wake_threads()

    def flush(self, timeout: float) -> bool:
        """Send everything without waiting for company; whether all was done within `timeout` seconds."""
        with self._work:
            self._hurried += 1
            self._work.notify_all()
            try:
                return self._done.wait_for(lambda: not self._unfinished, timeout)
            finally:
                self._hurried -= 1

    def look_after(self, now: float) -> None:
        """See `watchdog.Ward.look_after`. What was in their hands is tried again."""
        with self._work:
            unwell = {n: thread for n, thread in self._threads.items() if self._is_unwell(thread, now)}
            hands = [self._in_hand.pop(thread) for thread in unwell.values() if thread in self._in_hand]
            for number in unwell:
                self._start_thread(number)
        for thread in unwell.values():
            what = "hangs" if thread.is_alive() else "died"
            logger.error("a thread that settles messages %s: another has taken its place", what)
        for hand in hands:
            self._conclude(hand.batch, dict.fromkeys(range(len(hand.batch)), Unavailable("no answer")))

    def _is_unwell(self, thread: threading.Thread, now: float) -> bool:
        hand = self._in_hand.get(thread)
        return not thread.is_alive() or (hand is not None and now - hand.since > HANGS)

    def _wake_threads(self) -> None:
        for number in set(range(THREADS)) - self._threads.keys():
            self._start_thread(number)

    def _start_thread(self, number: int) -> None:
        thread = threading.Thread(target=self._run, args=(number,), name=f"sqs-settler-{number}", daemon=True)
        self._threads[number] = thread
        thread.start()

    def _run(self, number: int) -> None:
        while (hand := self._next(number)) is not None:
            try:
                self._carry_out(hand)
            except Exception:
                logger.exception("settling stumbled and goes on")

    def _next(self, number: int) -> Hand | None:
        thread = threading.current_thread()
        with self._work:
            while self._threads.get(number) is thread:
                now = self._clock.monotonic()
                hand = self._take_in_hand(now)
                if hand is not None:
                    if self._lanes or self._later:  # somebody else has to watch the time of what is left
                        self._work.notify()
                    return hand
                if self._stopping and not self._unfinished:
                    del self._threads[number]
                    return None
                self._work.wait(self._sleep(now))
            return None  # another has taken its place

    def _take_in_hand(self, now: float) -> Hand | None:
        """A full batch, or one whose first job has waited long enough."""
        while self._later and self._later[0][0] <= now:
            self._enqueue(heapq.heappop(self._later)[2])
        for lane, jobs in self._free_lanes():
            if len(jobs) >= lane.batch or self._hurried or now >= jobs[0].since + self._window:
                batch = [jobs.popleft() for _ in range(min(lane.batch, len(jobs)))]
                # Last in line from now on, so that one busy queue does not keep the others waiting.
                del self._lanes[lane]
                if jobs:
                    self._lanes[lane] = jobs
                hand = self._in_hand[threading.current_thread()] = Hand(lane, batch, since=now)
                return hand
        return None

    def _sleep(self, now: float) -> float | None:
        instants = [jobs[0].since + self._window for _, jobs in self._free_lanes()]
        instants += [not_before for not_before, _, _ in self._later[:1]]
        return max(0.0, min(instants) - now) if instants else None

    def _free_lanes(self) -> list[tuple[Lane, deque[Job]]]:
        """Those that may be sent now: where order counts, not those of which a batch is under way."""
        busy = {hand.lane for hand in self._in_hand.values() if hand.lane.in_order}
        return [(lane, jobs) for lane, jobs in self._lanes.items() if lane not in busy]

    def _enqueue(self, job: Job) -> None:
        lane = Lane(job.delivery.queue, _kind(job.settlement))
        jobs = self._lanes.setdefault(lane, deque())
        jobs.append(job)
        # One thread for the first job, which sets the time, and one for each batch that is full.
        if len(jobs) == 1 or len(jobs) % lane.batch == 0:
            self._work.notify()

    def _carry_out(self, hand: Hand) -> None:
        lane = hand.lane
        batch = [replace(job, settlement=_clamped(job, hand.since)) for job in hand.batch]
        failed: Mapping[int, SQSError]
        try:
            failed = self._send(lane, batch).failed
        except SQSError as error:
            failed = dict.fromkeys(range(len(batch)), error)
        except Exception as bug:
            logger.exception("settling stumbled and tries again", extra={"queue": lane.queue.name})
            failed = dict.fromkeys(range(len(batch)), Unavailable(repr(bug)))
        with self._work:
            if self._in_hand.pop(threading.current_thread(), None) is not hand:
                return  # another has taken its place
            if lane.in_order:
                self._work.notify()
        failed = {i: error for i, error in failed.items() if not _was_done_before(batch[i], error)}
        self._tell_trouble(lane, list(failed.values()), worked=len(failed) < len(batch))
        self._conclude(batch, failed)

    def _tell_trouble(self, lane: Lane, errors: list[SQSError], *, worked: bool) -> None:
        """Of what is tried again; of what SQS refuses for good, each message's own event tells."""
        with self._work:
            if lane not in self._troubles:
                self._troubles[lane] = Trouble(logger, *SENTENCES[lane.kind], lane.queue.name, self._clock)
            trouble = self._troubles[lane]
        errors = [error for error in errors if not isinstance(error, FINAL)]
        if errors:
            trouble.failed(errors[0])
        elif worked:
            trouble.worked()

    def _conclude(self, batch: list[Job], failed: Mapping[int, SQSError]) -> None:
        now = self._clock.monotonic()
        # One pause for all, so that they meet again in one batch.
        failures = 1 + max((batch[position].failures for position in failed), default=0)
        not_before = now + pause(failures)
        over = len(batch)
        try:
            for position, job in enumerate(batch):
                error = failed.get(position)
                if error is not None and self._again(job, error, not_before):
                    over -= 1
                else:
                    self._settled(job.delivery, job.settlement, error, now)
        finally:
            self._finish(over)

    def _send(self, lane: Lane, batch: list[Job]) -> BatchResult:
        queue = lane.queue
        if lane.kind is Delete:
            return queue.sqs.delete(queue.url, [job.delivery.handle for job in batch])
        if lane.kind is DeadLetter:
            for job in batch:
                self._send_dead_letter(job.delivery, job.settlement)  # type: ignore[arg-type]
            return BatchResult({})
        return queue.sqs.change_visibility(queue.url, [(job.delivery.handle, _seconds(job)) for job in batch])

    def _again(self, job: Job, error: SQSError, not_before: float) -> bool:
        """Whether the job is tried again."""
        if isinstance(error, FINAL):
            return False
        if not_before >= job.delivery.deadline:
            return False
        again = replace(job, failures=job.failures + 1, since=not_before)
        with self._work:
            heapq.heappush(self._later, (not_before, next(self._ties), again))
            self._work.notify()
        return True

    def _finish(self, jobs: int) -> None:
        with self._work:
            self._unfinished -= jobs
            if not self._unfinished:
                self._done.notify_all()
                if self._stopping:
                    self._work.notify_all()


def _was_done_before(job: Job, error: SQSError) -> bool:
    """Whether SQS did it at the first try, the answer to which was lost: then the handle is good no more."""
    return (
        isinstance(error, HandleIsInvalid)
        and job.failures > 0
        and isinstance(job.settlement, (Delete, Release))
    )


def _kind(settlement: Settlement) -> type[Settlement]:
    """Deletes go with deletes, visibility changes with visibility changes, dead letters alone."""
    return type(settlement) if isinstance(settlement, (Delete, DeadLetter)) else Hide


def _seconds(job: Job) -> int:
    """The visibility timeout to set."""
    match job.settlement:
        case Hide(seconds) | Park(seconds):
            return seconds
        case _:
            return 0


def _clamped(job: Job, now: float) -> Settlement:
    """What was asked, but never beyond the horizon: SQS would refuse it."""
    left = max(0, int(job.delivery.horizon - now) - HORIZON_MARGIN)
    match job.settlement:
        case Hide(seconds) if seconds > left:
            return Hide(left)
        case Park(seconds) if seconds > left:
            return Park(left)
        case settlement:
            return settlement
