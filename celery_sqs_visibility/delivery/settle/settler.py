"""Settlements on their way to SQS: in batches, by several threads, each tried again until its deadline."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import (
    DeadLetter,
    Delete,
    Hide,
    Park,
    Release,
    Replaced,
    Settlement,
)
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    AnswerLostError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

logger = logging.getLogger(__name__)

#: At 50 ms a request, sixteen at a time settle 3,200 messages a second.
MOST_IN_FLIGHT: Final = 16

#: SQS has handled a request after this time, though a busy process reads the answer later.
LONGEST_REQUEST_SECONDS: Final = 0.1

#: Errors after which nothing is tried again.
FINAL_ERRORS: Final = (ReceiptHandleInvalidError, RequestRefusedError)

#: The error of a visibility change or a dead letter that could not be sent in time.
TOO_LATE: Final = UnavailableError("its visibility timeout ran out before it could be settled")

#: A delete that has met another lingers for this many windows: more deletes are likely to come.
DELETE_LINGER_WINDOWS: Final = 5

#: How the log calls each kind of request when it fails, and when it works again.
ACTIONS: Mapping[type[Settlement], str] = {
    Delete: "delete messages",
    DeadLetter: "send dead letters",
    Hide: "hide or release messages",
}

#: The kind of request: a delete, a dead letter, or a visibility change.
KIND_OF: Final[Mapping[type[Settlement], type[Settlement]]] = {
    Delete: Delete,
    Replaced: Delete,
    DeadLetter: DeadLetter,
    Hide: Hide,
    Park: Hide,
    Release: Hide,
}


class PendingSettlement(NamedTuple):
    """A settlement to be carried out, not `Lapse`; it lingers from the monotonic instant `since`.

    After a try whose answer was lost SQS may have carried it out, and may show a message that was hidden
    from `done_by` on.
    """

    delivery: Delivery
    settlement: Settlement
    since: float
    failures: int = 0
    answer_lost: bool = False
    done_by: float = math.inf

    @property
    def seconds(self) -> int:
        """The visibility timeout to set."""
        return self.settlement.seconds if isinstance(self.settlement, (Hide, Park, Release)) else 0

    @property
    def ours_until(self) -> float:
        """The monotonic instant from which another worker may have the message."""
        return min(self.delivery.deadline, self.done_by)

    def clamped(self, now: float) -> PendingSettlement:
        """The same, not beyond the horizon: SQS would refuse that."""
        left = max(0, int(self.delivery.horizon - now) - HORIZON_MARGIN_SECONDS)
        if isinstance(self.settlement, (Hide, Park)) and self.settlement.seconds > left:
            return self._replace(settlement=replace(self.settlement, seconds=left))
        return self


@dataclass(frozen=True, slots=True, eq=False)
class SettlementBatch:
    """Settlements of one request; those that are too `late`, after their deadline, are not sent."""

    origin: PendingBatch
    settlements: list[PendingSettlement]
    late: list[PendingSettlement]

    def __len__(self) -> int:
        return len(self.settlements)


class PendingBatch:
    """The pending settlements of one queue and one kind of request. Not thread-safe: the settler locks.

    Attributes:
        size: how many one request carries.
        in_order: whether a request waits for the one before it: dead letters of FIFO queues keep their order.
        in_flight: whether one of those requests has not been concluded.
        not_before: the monotonic instant before which none is sent: the first one failed, and pauses.
    """

    def __init__(self, queue: Queue, kind: type[Settlement], window: float, clock: Clock) -> None:
        self.queue = queue
        self.kind = kind
        self.settlements: deque[PendingSettlement] = deque()
        self.size = 1 if kind is DeadLetter else BATCH_ENTRIES
        self.in_order = kind is DeadLetter and queue.fifo
        self.in_flight = False
        self.not_before = 0.0
        self.outage = Outage(logger, ACTIONS[kind], queue.name, clock)
        self._window = window
        # Nobody waits for a delete, except for the message's group in a FIFO queue.
        can_linger = kind is Delete and not queue.fifo
        self._longest_linger = window * (DELETE_LINGER_WINDOWS if can_linger else 1)

    def due(self, now: float, *, flushing: bool) -> float:
        """The monotonic instant of the next request. Not called where nothing is pending."""
        if flushing or len(self.settlements) >= self.size:
            return max(self.not_before, now)
        linger = self._longest_linger if len(self.settlements) > 1 else self._window
        return max(self.not_before, self.settlements[0].since + linger)

    def take(self, now: float) -> SettlementBatch:
        """The next request's settlements."""
        popleft = self.settlements.popleft
        taken = [popleft() for _ in range(min(self.size, len(self.settlements)))]
        self.in_flight = self.in_order
        if self.kind is Delete:
            return SettlementBatch(self, taken, [])
        late = [one for one in taken if one.ours_until <= now]
        return SettlementBatch(self, [one.clamped(now) for one in taken if one not in late], late)


#: A settlement that is over, with its error if it failed.
Ended = tuple[PendingSettlement, SQSError | None]

#: Called from a thread of the pump when the settlements of a request are over, with the monotonic instant
#: from which the delay of a visibility change counts.
Settled = Callable[[Iterable[Ended], float], None]

#: Sends a dead letter, from a thread of the pump, and submits the settlement that follows.
SendLetter = Callable[[Delivery, DeadLetter], None]


class Settler:
    """Sends settlements. `submit` may be called from any thread and does not block.

    A failed settlement is tried again, in any batch, until its delivery's deadline. No visibility change is
    sent after that: another worker may have the message, and SQS may take the old handle. Nor is a dead
    letter, beside which the message would run again. Where an answer is lost the change may have been made,
    and the message may be visible as soon as that says: a release is not sent again then.

    A settlement lingers for `window` seconds, so that others can share its request.
    """

    def __init__(
        self,
        window: float,
        clock: Clock,
        settled: Settled,
        send_letter: SendLetter,
        permissions: CopyPermissions,
        pump: Pump | None = None,
    ) -> None:
        self._window = window
        self._clock = clock
        self._settled = settled
        self._send_letter = send_letter
        self._permissions = permissions
        pump = pump or Pump(clock)
        self.lane: Lane[SettlementBatch] = pump.lane("settles messages", MOST_IN_FLIGHT, self)
        self._lock = self.lane.lock  # guards everything below
        self._batches: dict[tuple[Queue, type[Settlement]], PendingBatch] = {}
        self._waiting: dict[PendingBatch, None] = {}  # those with settlements, first come first served
        self._retries: list[tuple[float, int, PendingSettlement]] = []  # heap: (not before, tie-break, it)
        self._ties = itertools.count()
        self._unfinished = 0
        self._flushing = 0  # flushes under way: nothing lingers then

    def submit(self, delivery: Delivery, settlement: Settlement, now: float) -> None:
        """Carry out the settlement, soon. `now` is the monotonic instant."""
        with self._lock:
            self._enqueue(PendingSettlement(delivery, settlement, now), now, 1)

    def flush(self, timeout: float) -> bool:
        """Send everything now; whether all was done within `timeout` seconds."""
        with self._lock:
            if not self._unfinished:
                return True
            self._flushing += 1
            self.lane.wake()
            try:
                return self.lane.wait_until(lambda: not self._unfinished, timeout)
            finally:
                self._flushing -= 1

    def due(self, now: float) -> float | None:
        """See `pump.Work`."""
        if not self._unfinished:
            return None
        due = self._retries[0][0] if self._retries else math.inf
        for pending in self._waiting:
            if not pending.in_flight:
                due = min(due, pending.due(now, flushing=self._flushing > 0))
        return None if due == math.inf else due

    def ready(self) -> int:
        """See `pump.Work`."""
        return max(1, sum(len(pending.settlements) // pending.size for pending in self._sendable()))

    def take(self, now: float) -> SettlementBatch | None:
        """See `pump.Work`: a full batch, or one that has lingered for long enough."""
        if not self._unfinished:
            return None
        while self._retries and self._retries[0][0] <= now:
            self._enqueue(heapq.heappop(self._retries)[2], now)
        for pending in self._sendable():
            if pending.due(now, flushing=self._flushing > 0) <= now:
                batch = pending.take(now)
                # To the end of the line, so that one busy queue does not keep the others waiting.
                del self._waiting[pending]
                if pending.settlements:
                    self._waiting[pending] = None
                return batch
        return None

    def _sendable(self) -> list[PendingBatch]:
        return [pending for pending in self._waiting if not pending.in_flight]

    def _enqueue(self, one: PendingSettlement, now: float, new: int = 0) -> None:
        queue, way = one.delivery.queue, type(one.settlement)
        pending = self._batches.get((queue, way)) or self._new_batch(queue, way)
        pending.settlements.append(one)
        self._unfinished += new  # not before: memory may lack, and what is not there is never finished
        first = pending not in self._waiting
        if first:
            self._waiting[pending] = None
        # The first settlement sets the time, and a full batch goes at once.
        if first or len(pending.settlements) % pending.size == 0:
            self.lane.wake_for(self.due(now), now)

    def _new_batch(self, queue: Queue, way: type[Settlement]) -> PendingBatch:
        """The batch for a way to settle: ways that have the same kind of request share it."""
        kind = KIND_OF[way]
        new = PendingBatch(queue, kind, self._window, self._clock)
        shared = self._batches.setdefault((queue, kind), new)
        return self._batches.setdefault((queue, way), shared)

    def send(self, batch: SettlementBatch, _since: float) -> BatchResult:
        """See `pump.Work`."""
        queue, kind = batch.origin.queue, batch.origin.kind
        if not batch.settlements:
            return BatchResult({})
        if kind is Delete:
            return queue.sqs.delete(queue.url, [one.delivery.handle for one in batch.settlements])
        if kind is DeadLetter:
            for one in batch.settlements:
                self._send_letter(one.delivery, one.settlement)  # type: ignore[arg-type] # it is a dead letter
            return BatchResult({})
        changes = [(one.delivery.handle, one.seconds) for one in batch.settlements]
        return queue.sqs.change_visibility(queue.url, changes)

    def conclude(self, batch: SettlementBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `pump.Work`."""
        settlements = batch.settlements
        finished = len(settlements) + len(batch.late)
        try:
            now = self._clock.monotonic()
            done_at = min(now, since + LONGEST_REQUEST_SECONDS)
            ended: Iterable[Ended] = zip(settlements, itertools.repeat(None))
            if failed:
                failed = {
                    i: error for i, error in failed.items() if not _was_done_before(settlements[i], error)
                }
                retried = self._retry_failed(batch, failed, since, now)
                finished -= len(retried)
                ended = [(one, failed.get(i)) for i, one in enumerate(settlements) if i not in retried]
            _note_outage(batch, failed, since)
            if batch.origin.kind is Delete:
                self._note_permission(batch, failed)
            self._settled(ended, done_at)
            if batch.late:
                self._settled([(one, TOO_LATE) for one in batch.late], now)
        finally:
            self._finish(batch.origin, finished)

    def _retry_failed(
        self, batch: SettlementBatch, failed: Mapping[int, SQSError], since: float, now: float
    ) -> set[int]:
        """Send failed ones again, after one pause, so that they share a batch; the positions of these."""
        settlements = batch.settlements
        not_before = now + pause(1 + max((settlements[i].failures for i in failed), default=0))
        return {
            i
            for i, error in failed.items()
            if self._retry(batch.origin, settlements[i], error, since, not_before)
        }

    def _note_permission(self, batch: SettlementBatch, failed: Mapping[int, SQSError]) -> None:
        denied = next((error for error in failed.values() if isinstance(error, AccessDeniedError)), None)
        if denied is not None:
            self._permissions.refuse_deletes(batch.origin.queue, denied)
        elif len(failed) < len(batch):
            self._permissions.note_deleted(batch.origin.queue)

    def _retry(
        self,
        pending: PendingBatch,
        tried: PendingSettlement,
        error: SQSError,
        since: float,
        not_before: float,
    ) -> bool:
        """Send it again at `not_before`; `False` if it failed for good."""
        again = tried._replace(failures=tried.failures + 1, since=not_before)
        if isinstance(error, AnswerLostError):
            again = again._replace(answer_lost=True)
            if pending.kind is Hide:
                again = again._replace(done_by=min(tried.done_by, since + tried.seconds))
        if isinstance(error, FINAL_ERRORS) or not_before >= again.ours_until:
            return False
        with self._lock:
            if pending.in_order:
                pending.settlements.appendleft(again)
                pending.not_before = not_before
                self._waiting[pending] = None
            else:
                heapq.heappush(self._retries, (not_before, next(self._ties), again))
            self.lane.wake()
        return True

    def _finish(self, pending: PendingBatch, settlements: int) -> None:
        with self._lock:
            if pending.in_order:
                pending.in_flight = False
                self.lane.wake()
            self._unfinished -= settlements


def _note_outage(batch: SettlementBatch, failed: Mapping[int, SQSError], since: float) -> None:
    """Log failures that are tried again. A settlement that SQS refuses for good has an event of its own."""
    errors = [error for error in failed.values() if not isinstance(error, FINAL_ERRORS)]
    if errors:
        batch.origin.outage.failure(errors[0])
    elif batch.origin.outage.error is not None and len(failed) < len(batch):
        batch.origin.outage.success(since)


def _was_done_before(one: PendingSettlement, error: SQSError) -> bool:
    """Whether SQS deleted it at an earlier try whose answer was lost: the handle is invalid since then.

    A FIFO queue also refuses the handle of a message that is there, after the visibility timeout.
    """
    return (
        isinstance(error, ReceiptHandleInvalidError)
        and one.answer_lost
        and not one.delivery.queue.fifo
        and isinstance(one.settlement, Delete)
    )
