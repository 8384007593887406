"""Settlements waiting to be sent to SQS: which share a request, when it is due, and which are retried."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue

#: Errors after which a settlement is not retried.
FINAL_ERRORS: Final = (ReceiptHandleInvalidError, RequestRefusedError)

#: The error of a visibility change that could not be sent in time.
TOO_LATE: Final = UnavailableError("its visibility timeout ran out before it could be settled")

#: Once a second delete has joined the first, the batch lingers for this many windows, to collect more.
DELETE_LINGER_WINDOWS: Final = 5


class PendingSettlement(NamedTuple):
    """A settlement to be sent in a request; it lingers from the monotonic instant `since`.

    If the answer to an earlier try was lost, SQS may have carried it out. A message that was hidden may then
    be visible from `done_by` on.
    """

    delivery: Delivery
    settlement: Delete | Hide
    since: float
    failures: int = 0
    answer_lost: bool = False
    done_by: float = math.inf

    @property
    def seconds(self) -> int:
        """The visibility timeout to set."""
        return self.settlement.seconds if isinstance(self.settlement, Hide) else 0

    @property
    def ours_until(self) -> float:
        """The monotonic instant from which another worker may have the message."""
        return min(self.delivery.deadline, self.done_by)

    def clamped(self, now: float) -> PendingSettlement:
        """Return a copy whose timeout ends before the horizon: SQS refuses a longer one."""
        left = max(0, int(self.delivery.horizon - now) - HORIZON_MARGIN_SECONDS)
        if isinstance(self.settlement, Hide) and self.settlement.seconds > left:
            return self._replace(settlement=replace(self.settlement, seconds=left))
        return self

    def was_done_before(self, error: SQSError) -> bool:
        """Whether the error shows that an earlier delete, whose answer was lost, succeeded.

        In a FIFO queue it does not: SQS also refuses an expired handle of a message that still exists.
        """
        return (
            isinstance(error, ReceiptHandleInvalidError)
            and self.answer_lost
            and not self.delivery.queue.fifo
            and isinstance(self.settlement, Delete)
        )


#: A settlement that was sent or given up, with its error if it failed.
Ended = tuple[PendingSettlement, SQSError | None]


@dataclass(frozen=True, slots=True, eq=False)
class SettlementBatch:
    """Settlements of one request; those in `late` have passed their deadline and are not sent."""

    origin: PendingBatch
    settlements: list[PendingSettlement]
    late: list[PendingSettlement]

    def __len__(self) -> int:
        return len(self.settlements)


class PendingBatch:
    """The pending settlements of one queue and one kind of request."""

    def __init__(self, queue: Queue, kind: type[Delete | Hide], window: float) -> None:
        self.queue = queue
        self.kind = kind
        self.settlements: deque[PendingSettlement] = deque()
        self._window = window
        # Nobody waits for a delete, except for the message's group in a FIFO queue.
        can_linger = kind is Delete and not queue.fifo
        self._longest_linger = window * (DELETE_LINGER_WINDOWS if can_linger else 1)

    def due(self, now: float, *, flushing: bool) -> float:
        """The monotonic instant of the next request. Requires a pending settlement."""
        if flushing or len(self.settlements) >= BATCH_ENTRIES:
            return now
        linger = self._longest_linger if len(self.settlements) > 1 else self._window
        return self.settlements[0].since + linger

    def take(self, now: float) -> SettlementBatch:
        """Take out the settlements of the next request."""
        popleft = self.settlements.popleft
        taken = [popleft() for _ in range(min(BATCH_ENTRIES, len(self.settlements)))]
        if self.kind is Delete:
            return SettlementBatch(self, taken, [])
        late = [one for one in taken if one.ours_until <= now]
        return SettlementBatch(self, [one.clamped(now) for one in taken if one not in late], late)


class SettlementBatches:
    """Settlements that are pending or in flight. Not thread-safe: the caller locks.

    A failed settlement is retried, in any batch, until its delivery's deadline. After the deadline no
    visibility change is sent: another worker may have the message, and SQS may accept the expired handle. If
    the answer to a visibility change was lost, it is retried only until the message may be visible because of
    it; so a release is not retried.

    Args:
        window: for how many seconds a settlement lingers, so that others can share its request.

    Attributes:
        unfinished: number of settlements that are pending or in flight.
        flushing: number of callers that wait for all of them; while there are any, nothing lingers.
        news: whether the next request may be due earlier than before; the reader resets it.
        tries_again: whether failed settlements are retried.
    """

    def __init__(self, window: float) -> None:
        self.tries_again = True
        self.unfinished = 0
        self.flushing = 0
        self.news = False
        self._window = window
        self._batches: dict[tuple[Queue, type[Delete | Hide]], PendingBatch] = {}
        self._waiting: dict[PendingBatch, None] = {}  # those with settlements, first come first served
        self._retries: list[tuple[float, int, PendingSettlement]] = []  # heap: (not before, tie-break, it)
        self._ties = itertools.count()

    def add(self, one: PendingSettlement, new: int = 1) -> None:
        """Queue a settlement. Pass `new=0` for a retry, which `unfinished` counts already."""
        queue, kind = one.delivery.queue, type(one.settlement)
        pending = self._batches.get((queue, kind))
        if pending is None:
            pending = self._batches[queue, kind] = PendingBatch(queue, kind, self._window)
        pending.settlements.append(one)
        self.unfinished += new  # not before: memory may lack, and what is not there is never finished
        # The first settlement sets the time, and a full batch goes at once.
        if pending not in self._waiting or len(pending.settlements) % BATCH_ENTRIES == 0:
            self._waiting[pending] = None
            self.news = True

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a batch; `None` if nothing is pending."""
        flushing = self.flushing > 0
        instants = [self._retries[0][0]] if self._retries else []
        instants += [pending.due(now, flushing=flushing) for pending in self._waiting]
        return min(instants, default=None)

    def ready(self) -> int:
        """About how many batches `take` would return now, given that one is due."""
        return max(1, sum(len(pending.settlements) // BATCH_ENTRIES for pending in self._waiting))

    def take(self, now: float) -> SettlementBatch | None:
        """A full batch, or one that has lingered for long enough; `None` if nothing is due."""
        while self._retries and self._retries[0][0] <= now:
            self.add(heapq.heappop(self._retries)[2], new=0)
        for pending in self._waiting:
            if pending.due(now, flushing=self.flushing > 0) <= now:
                batch = pending.take(now)
                # To the end of the line, so that one busy queue does not keep the others waiting.
                del self._waiting[pending]
                if pending.settlements:
                    self._waiting[pending] = None
                return batch
        return None

    def answered(
        self, batch: SettlementBatch, failed: Mapping[int, SQSError], since: float, now: float
    ) -> list[Ended]:
        """Handle the answer to a batch: return the settlements that are over, and retry the others.

        Failed ones are sent again after one pause, so that they share a batch. The caller subtracts the
        returned ones from `unfinished`, after it has told the listeners.
        """
        tried = batch.settlements
        failed = {i: error for i, error in failed.items() if not tried[i].was_done_before(error)}
        not_before = now + pause(1 + max((tried[i].failures for i in failed), default=0))
        ended: list[Ended] = []
        for i, one in enumerate(tried):
            error = failed.get(i)
            if error is None or not self._retry(batch.origin, one, error, since, not_before):
                ended.append((one, error))
        return ended

    def _retry(
        self,
        pending: PendingBatch,
        tried: PendingSettlement,
        error: SQSError,
        since: float,
        not_before: float,
    ) -> bool:
        """Schedule a retry at `not_before`. Returns `False` if the settlement failed for good."""
        again = tried._replace(failures=tried.failures + 1, since=not_before)
        if isinstance(error, AnswerLostError):
            again = again._replace(answer_lost=True)
            if pending.kind is Hide:
                again = again._replace(done_by=min(tried.done_by, since + tried.seconds))
        if not self.tries_again or isinstance(error, FINAL_ERRORS) or not_before >= again.ours_until:
            return False
        heapq.heappush(self._retries, (not_before, next(self._ties), again))
        self.news = True
        return True
