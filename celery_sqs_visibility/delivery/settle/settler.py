"""Settlements on their way to SQS: coalesced into batches, sent by a crew, retried by entry."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.delivery.model import (
    DeadLetter,
    Delete,
    Delivery,
    Hide,
    Park,
    Release,
    Renew,
    Settlement,
)
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.errors import (
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN

logger = logging.getLogger(__name__)

#: At 50 ms a request, twelve threads settle 2,400 messages a second.
MOST_THREADS: Final = 16

#: Seconds after which SQS will have done what it was asked, though a busy process reads the answer later.
LONGEST_REQUEST: Final = 0.1

#: What the log calls each kind of request.
ACTIONS: Mapping[type[Settlement], str] = {
    Delete: "delete messages",
    DeadLetter: "send dead letters",
    Renew: "send copies of messages with a far ETA",
    Hide: "hide or release messages",
}


#: Settlements that send a message.
COPIES: Final = (DeadLetter, Renew)


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


class Lane:
    """What may share a batch: one queue, one kind of request. And what waits to."""

    def __init__(self, queue: Queue, kind: type[Settlement], clock: Clock) -> None:
        self.queue = queue
        self.kind = kind
        self.jobs: deque[Job] = deque()
        #: How many jobs one request carries.
        self.batch = 1 if kind in COPIES else BATCH_ENTRIES
        #: Whether nobody waits for it, but for who pays for the requests: in a FIFO queue the group does.
        self.can_wait = kind is Delete and not queue.fifo
        #: Whether one request waits for the other: copies in a FIFO queue stay in the order they arrive.
        self.in_order = kind in COPIES and queue.fifo
        self.under_way = False  # whether such a request is, and has not been concluded
        #: The monotonic instant before which none of them is sent: the first is tried again then.
        self.not_before = 0.0
        self.outage = Outage(logger, ACTIONS[kind], queue.name, clock)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Jobs that go in one request.

    Attributes:
        lane: what they share.
        jobs: those that are sent.
        late: visibility changes whose deadline has passed, which are not.
    """

    lane: Lane
    jobs: list[Job]
    late: list[Job]

    def __len__(self) -> int:
        return len(self.jobs)


#: Where a delete has met others within the window, more are to come: it waits for so many windows.
WINDOWS_IN_COMPANY = 5

#: Errors after which nothing is tried again.
FINAL = (ReceiptHandleInvalidError, RequestRefusedError)

#: What became of a visibility change that was not sent in time.
TOO_LATE = UnavailableError("its visibility timeout ran out before SQS was told to hide, release or renew it")

#: Told from a settler's thread that a job is over: with the error if it could not be done, and the
#: instant from which the delay of a visibility change counts.
Settled = Callable[[Delivery, Settlement, SQSError | None, float], None]

#: Sends a copy, from a settler's thread. The caller of `Settler` then submits what remains to be done.
SendCopy = Callable[[Delivery, DeadLetter | Renew], None]


class Settler:
    """Sends settlements. `submit` may be called from any thread and does not block.

    A job that fails is tried again, in whatever batch it finds, until its delivery's deadline. No visibility
    change is sent after that: another worker may have the message, and SQS may take the old handle.

    Args:
        window: seconds a job waits for company; deletes that have some wait longer.
        clock: the monotonic clock of the deadlines.
        settled: is told how each job ended.
        send_copy: sends the copy of a message that is given up, or waits on as one.

    Attributes:
        crew: its threads, to be started.
    """

    def __init__(self, window: float, clock: Clock, settled: Settled, send_copy: SendCopy) -> None:
        self._window = window
        self._clock = clock
        self._settled = settled
        self._send_copy = send_copy
        self.batch_threads: BatchThreads[Batch] = BatchThreads(
            "sqs-settler", "settles messages", MOST_THREADS, self, clock
        )
        self._lock = self.batch_threads.lock  # guards everything below
        self._done = threading.Condition(self._lock)
        self._lanes: dict[tuple[Queue, type[Settlement]], Lane] = {}
        self._line: dict[Lane, None] = {}  # those with jobs, in the order of their turns
        self._later: list[tuple[float, int, Job]] = []  # heap of failed jobs: (not before, tie-break, job)
        self._ties = itertools.count()
        self._unfinished = 0
        self._hurried = 0  # flushes under way: nothing waits for company then

    def submit(self, delivery: Delivery, settlement: Settlement) -> None:
        """Do that to the delivery, soon."""
        with self._lock:
            self._unfinished += 1
            self._enqueue(Job(delivery, settlement, self._clock.monotonic()))

    def flush(self, timeout: float) -> bool:
        """Send everything without waiting for company; whether all was done within `timeout` seconds."""
        with self._lock:
            self._hurried += 1
            self.batch_threads.call()
            try:
                return self._done.wait_for(lambda: not self._unfinished, timeout)
            finally:
                self._hurried -= 1

    def due(self, now: float) -> float | None:
        """See `crew.Work`."""
        instants = [not_before for not_before, _, _ in self._later[:1]]
        instants += [self._due_of(lane, now) for lane in self._free_lanes()]
        return min(instants, default=None)

    def ready(self) -> int:
        """See `crew.Work`."""
        return max(1, sum(len(lane.jobs) // lane.batch for lane in self._free_lanes()))

    def take(self, now: float) -> Batch | None:
        """A full batch, or one whose first job has waited long enough."""
        while self._later and self._later[0][0] <= now:
            self._enqueue(heapq.heappop(self._later)[2])
        for lane in self._free_lanes():
            if self._due_of(lane, now) <= now:
                jobs = [lane.jobs.popleft() for _ in range(min(lane.batch, len(lane.jobs)))]
                # Last in line from now on, so that one busy queue does not keep the others waiting.
                del self._line[lane]
                if lane.jobs:
                    self._line[lane] = None
                lane.under_way = lane.in_order
                late = [job for job in jobs if lane.kind in (Hide, Renew) and job.delivery.deadline <= now]
                return Batch(lane, [_clamped(job, now) for job in jobs if job not in late], late)
        return None

    def _is_full(self, lane: Lane) -> bool:
        return len(lane.jobs) >= lane.batch or self._hurried > 0

    def _due_of(self, lane: Lane, now: float) -> float:
        if self._is_full(lane):
            return max(lane.not_before, now)
        windows = WINDOWS_IN_COMPANY if lane.can_wait and len(lane.jobs) > 1 else 1
        return max(lane.not_before, lane.jobs[0].since + windows * self._window)

    def _free_lanes(self) -> list[Lane]:
        """Those that may be sent now: where order counts, not those of which a batch is under way."""
        return [lane for lane in self._line if not lane.under_way]

    def _enqueue(self, job: Job) -> None:
        lane = self._lane(job.delivery.queue, _kind(job.settlement))
        # A signal handler may settle between any two of these lines.
        lane.jobs.append(job)
        first = lane not in self._line
        self._line[lane] = None
        # The first job sets the time, and a batch that is full goes at once.
        if first or len(lane.jobs) % lane.batch == 0:
            self.batch_threads.call()

    def _lane(self, queue: Queue, kind: type[Settlement]) -> Lane:
        lane = self._lanes.get((queue, kind))
        if lane is None:
            lane = self._lanes[queue, kind] = Lane(queue, kind, self._clock)
        return lane

    def send(self, batch: Batch, _since: float) -> BatchResult:
        """See `crew.Work`."""
        queue, jobs = batch.lane.queue, batch.jobs
        if not jobs:
            return BatchResult({})
        if batch.lane.kind is Delete:
            return queue.sqs.delete(queue.url, [job.delivery.handle for job in jobs])
        if batch.lane.kind in COPIES:
            for job in jobs:
                self._send_copy(job.delivery, job.settlement)  # type: ignore[arg-type]
            return BatchResult({})
        return queue.sqs.change_visibility(queue.url, [(job.delivery.handle, _seconds(job)) for job in jobs])

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `crew.Work`."""
        jobs = batch.jobs
        over = len(jobs) + len(batch.late)
        try:
            failed = {i: error for i, error in failed.items() if not _was_done_before(jobs[i], error)}
            now = self._clock.monotonic()
            # One pause for all, so that they meet again in one batch.
            failures = 1 + max((jobs[position].failures for position in failed), default=0)
            not_before = now + pause(failures)
            again = {i for i, error in failed.items() if self._again(jobs[i], error, not_before)}
            over -= len(again)
            self._tell_trouble(batch.lane, list(failed.values()), since, worked=len(failed) < len(jobs))
            done = min(now, since + LONGEST_REQUEST)
            for position, job in enumerate(jobs):
                if position not in again:
                    self._tell_settled(job, failed.get(position), done)
            for job in batch.late:
                self._tell_settled(job, TOO_LATE, now)
        finally:
            self._finish(batch.lane, over)

    def _tell_settled(self, job: Job, error: SQSError | None, done: float) -> None:
        """The other jobs of its batch are not to suffer from what goes wrong with one."""
        try:
            self._settled(job.delivery, job.settlement, error, done)
        except Exception:  # noqa: BLE001 - logged, if that works
            log_safely(logger.exception, "telling what became of a settlement stumbled")

    @staticmethod
    def _tell_trouble(lane: Lane, errors: list[SQSError], since: float, *, worked: bool) -> None:
        """Of what is tried again; of what SQS refuses for good, each message's own event tells."""
        errors = [error for error in errors if not isinstance(error, FINAL)]
        if errors:
            lane.outage.failure(errors[0])
        elif worked:
            lane.outage.success(since)

    def _again(self, job: Job, error: SQSError, not_before: float) -> bool:
        """Whether the job is tried again."""
        if isinstance(error, FINAL):
            return False
        if not_before >= job.delivery.deadline:
            return False
        again = replace(job, failures=job.failures + 1, since=not_before)
        with self._lock:
            lane = self._lane(job.delivery.queue, _kind(job.settlement))
            if lane.in_order:
                lane.jobs.appendleft(again)
                lane.not_before = not_before
                self._line[lane] = None
            else:
                heapq.heappush(self._later, (not_before, next(self._ties), again))
            self.batch_threads.call()
        return True

    def _finish(self, lane: Lane, jobs: int) -> None:
        with self._lock:
            if lane.in_order:
                lane.under_way = False
                self.batch_threads.call()
            self._unfinished -= jobs
            if not self._unfinished:
                self._done.notify_all()


def _was_done_before(job: Job, error: SQSError) -> bool:
    """Whether SQS did it at the first try, the answer to which was lost: then the handle is good no more."""
    return (
        isinstance(error, ReceiptHandleInvalidError)
        and job.failures > 0
        and isinstance(job.settlement, (Delete, Release))
    )


def _kind(settlement: Settlement) -> type[Settlement]:
    """Deletes go with deletes, visibility changes with visibility changes, copies alone."""
    return type(settlement) if isinstance(settlement, (Delete, *COPIES)) else Hide


def _seconds(job: Job) -> int:
    """The visibility timeout to set."""
    match job.settlement:
        case Hide(seconds) | Park(seconds):
            return seconds
        case _:
            return 0


def _clamped(job: Job, now: float) -> Job:
    """What was asked, but never beyond the horizon: SQS would refuse it."""
    left = max(0, int(job.delivery.horizon - now) - HORIZON_MARGIN)
    match job.settlement:
        case Hide(seconds) if seconds > left:
            return replace(job, settlement=Hide(left))
        case Park(seconds) if seconds > left:
            return replace(job, settlement=Park(left))
        case _:
            return job
