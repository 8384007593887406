"""Heartbeat: it keeps held messages hidden, be they buffered, reserved or running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.hold.ledger import ExtensionOutcome, Ledger
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settlements import Settlement
from celery_sqs_visibility.errors import AnswerLostError, ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.events import Event, Extended, Lost, emit, log_safely
from celery_sqs_visibility.measurements import ExtensionEnded
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: At 50 ms a request, four at a time extend 800 messages a second.
MOST_IN_FLIGHT: Final = 4

#: An extension is urgent if its message would come back within this time, in which the client could not wait
#: for the answer to a request that hangs, pause, and make another.
URGENT_SECONDS: Final = 6.25

#: SQS that answers within this time answers to urgent requests, too.
PROMPT_SECONDS: Final = 1.0

DEADLINE_PASSED: Final = "its visibility timeout ran out before it could be extended"
ANSWERED_LATE: Final = "its extension was answered after its visibility timeout, and may be worth nothing"
HORIZON_REACHED: Final = "it was held for the 12 hours that SQS allows"


@dataclass(frozen=True, slots=True, eq=False)
class ExtensionBatch:
    """Due deliveries of one queue.

    Attributes:
        extensions: those to be extended, and by how many seconds from now.
        others: those that lapsed, or need no extension.
    """

    queue: Queue
    extensions: list[tuple[Delivery, int]]
    others: list[Delivery]

    def __len__(self) -> int:
        return len(self.extensions)


#: A delivery whose extension ended, the ledger's outcome, and an event, if it is worth telling.
Concluded = tuple[Delivery, ExtensionOutcome, Event | None]


class Heartbeat:
    """The heartbeat's work: see `pump.Work`.

    Args:
        ledger: the deliveries that are held.
        clock: the monotonic clock of its deadlines.
        resume: carries out a settlement that had to wait for an extension in flight.

    Attributes:
        lane: its lane, to be started.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        resume: Callable[[Delivery, Settlement], None],
        pump: Pump | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._resume = resume
        pump = pump or Pump(clock)
        self.lane: Lane[ExtensionBatch] = pump.lane("extends messages", MOST_IN_FLIGHT, self)
        self._outages: dict[str, Outage] = {}  # by queue; guarded by the lane's lock
        self._slow: set[str] = set()  # queues whose latest extension was cut off; each step is atomic

    def notice(self) -> None:
        """Deliveries were added: the next extension may be earlier. Any thread."""
        due = self._ledger.next_extension()
        with self.lane.lock:
            if due is not None and due < self.lane.next_due:
                self.lane.wake_for(due, self._clock.monotonic())

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `pump.Work`
        """See `pump.Work`."""
        return self._ledger.next_extension()

    def ready(self) -> int:
        """See `pump.Work`."""
        return max(1, self._ledger.batches_due(self._clock.monotonic()))

    def take(self, now: float) -> ExtensionBatch | None:
        """See `pump.Work`."""
        due = self._ledger.take_due(now)
        if not due:
            return None
        extensions = [(delivery, seconds) for delivery, seconds in due if seconds]
        return ExtensionBatch(
            due[0][0].queue, extensions, [delivery for delivery, seconds in due if not seconds]
        )

    def send(self, batch: ExtensionBatch, since: float) -> BatchResult:
        """See `pump.Work`."""
        if not batch.extensions:
            return BatchResult({})
        changes = [(delivery.handle, seconds) for delivery, seconds in batch.extensions]
        left = min(delivery.deadline for delivery, _ in batch.extensions) - since
        urgent = left < URGENT_SECONDS and batch.queue.name not in self._slow
        return batch.queue.sqs.change_visibility(batch.queue.url, changes, urgent=urgent)

    def conclude(self, batch: ExtensionBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `pump.Work`. The ledger knows how all ended before anybody else hears of the first."""
        concluded = [self._not_extended(delivery, since) for delivery in batch.others]
        for position, (delivery, seconds) in enumerate(batch.extensions):
            concluded.append(self._note(delivery, seconds, since, failed.get(position)))
        if batch.extensions:
            self._note_pace(batch.queue.name, self._clock.monotonic() - since, failed.values())
            self._log_outage(batch.queue, since, failed.values())
        for each in concluded:
            self._tell(*each)

    def _not_extended(self, delivery: Delivery, now: float) -> Concluded:
        if delivery.deadline <= now:
            return self._lose(delivery, self._why_lapsed(delivery))
        return delivery, self._ledger.not_extensible(delivery, now), None

    def _note(self, delivery: Delivery, seconds: int, since: float, error: SQSError | None) -> Concluded:
        if error is None:
            if ExtensionEnded.is_wanted():
                self._measure(delivery)
            if delivery.deadline <= self._clock.monotonic():
                return self._lose(delivery, ANSWERED_LATE)
            outcome = self._ledger.extended(delivery, since + seconds)
            event = Extended(delivery.facts, seconds) if Extended.is_wanted() else None
            return delivery, outcome, event
        if isinstance(error, ReceiptHandleInvalidError):
            return self._lose(delivery, str(error))
        return delivery, self._ledger.not_extended(delivery, self._clock.monotonic()), None

    def _measure(self, delivery: Delivery) -> None:
        late = self._ledger.lateness(delivery, self._clock.monotonic())
        emit(ExtensionEnded(delivery.queue.name, late))

    def _lose(self, delivery: Delivery, reason: str) -> Concluded:
        return delivery, self._ledger.refused(delivery), Lost(delivery.facts, reason)

    def _why_lapsed(self, delivery: Delivery) -> str:
        if delivery.at_horizon:
            return HORIZON_REACHED
        outage = self._outages.get(delivery.queue.name)
        return f"{DEADLINE_PASSED}: {outage.error}" if outage and outage.error else DEADLINE_PASSED

    def _note_pace(self, queue: str, seconds: float, errors: Collection[SQSError]) -> None:
        """Where one was cut off, the next waits for the answer for longer, until SQS is prompt again."""
        if any(isinstance(error, AnswerLostError) for error in errors):
            self._slow.add(queue)
        elif seconds < PROMPT_SECONDS:
            self._slow.discard(queue)

    def _log_outage(self, queue: Queue, since: float, errors: Iterable[SQSError]) -> None:
        """One line when extending begins to fail, and one when it works again."""
        with self.lane.lock:
            outage = self._outages.get(queue.name)
            if outage is None:
                outage = Outage(logger, "extend messages", queue.name, self._clock)
                self._outages[queue.name] = outage
        # The message's own event tells of an invalid handle.
        error = next((error for error in errors if not isinstance(error, ReceiptHandleInvalidError)), None)
        if error is None:
            outage.success(since)
        else:
            outage.failure(error)

    def _tell(self, delivery: Delivery, outcome: ExtensionOutcome, event: Event | None) -> None:
        """A delivery that was deleted or superseded meanwhile has no event, and no run to be ended."""
        held, waiting = outcome
        if event is not None and (held or waiting is not None):
            emit(event)
        if held and isinstance(event, Lost) and (on_lost := delivery.on_lost) is not None:
            _guarded("the run of a lost message could not be ended", on_lost, delivery)
        if waiting is not None:
            _guarded("a settlement was lost, and its message comes back", self._resume, delivery, waiting)


def _guarded(sentence: str, act: Callable[..., object], *args: object) -> None:
    """An error with one delivery does not concern the others of its batch."""
    try:
        act(*args)
    except Exception:  # noqa: BLE001 - logged, if that works
        log_safely(logger.exception, sentence)
