"""Settlements that wait to share a request. No lock, no thread: the settler calls it under its own lock."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.settlements import (
    DeadLetter,
    Delete,
    Hide,
    Park,
    Release,
    Settlement,
)
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

logger = logging.getLogger(__name__)

#: A delete that has met another lingers for this many windows: more deletes are likely to come.
DELETE_LINGER_WINDOWS: Final = 5

#: How the log calls each kind of request when it fails, and when it works again.
ACTIONS: Mapping[type[Settlement], str] = {
    Delete: "delete messages",
    DeadLetter: "send dead letters",
    Hide: "hide or release messages",
}


class PendingSettlement(NamedTuple):
    """A settlement to be carried out, not `Lapse`; it lingers from the monotonic instant `since`.

    At `done_by` SQS may show the message, since it may have carried out a try whose answer was lost.
    """

    delivery: Delivery
    settlement: Settlement
    since: float
    failures: int = 0
    done_by: float = math.inf

    @property
    def seconds(self) -> int:
        """The visibility timeout to set."""
        return self.settlement.seconds if isinstance(self.settlement, (Hide, Park)) else 0

    @property
    def ours_until(self) -> float:
        """The monotonic instant from which another worker may have the message."""
        return min(self.delivery.deadline, self.done_by)

    def clamped(self, now: float) -> PendingSettlement:
        """The same, not beyond the horizon: SQS would refuse that."""
        left = max(0, int(self.delivery.horizon - now) - HORIZON_MARGIN_SECONDS)
        if isinstance(self.settlement, (Hide, Park)) and self.settlement.seconds > left:
            return self._replace(settlement=type(self.settlement)(left))
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
    """The pending settlements of one queue and one kind of request.

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
        if self.kind is not Hide:
            return SettlementBatch(self, taken, [])
        late = [one for one in taken if one.ours_until <= now]
        return SettlementBatch(self, [one.clamped(now) for one in taken if one not in late], late)


#: The kind of request: a delete, a dead letter, or a visibility change.
KIND_OF: Final[Mapping[type[Settlement], type[Settlement]]] = {
    Delete: Delete,
    DeadLetter: DeadLetter,
    Hide: Hide,
    Park: Hide,
    Release: Hide,
}
