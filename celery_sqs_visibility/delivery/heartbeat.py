"""Heartbeat: keeps held messages hidden while they are buffered, reserved or running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.held import Answered, Extension, Held
from celery_sqs_visibility.core.settlements import Direct
from celery_sqs_visibility.delivery.outage import Outages
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import AnswerLostError, ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.events import Extended, ExtensionEnded, Lost, emit, log_safely

logger = logging.getLogger(__name__)

#: At 50 ms a request, four at a time extend 800 messages a second.
MAX_IN_FLIGHT: Final = 4

#: An extension is urgent if its message comes back within this time: the client couldn't wait for the answer
#: to a request that hangs, pause, and send another.
URGENT_SECONDS: Final = 6.25

#: If SQS answers within this time, urgent requests will be answered in time, too.
PROMPT_SECONDS: Final = 1.0

#: Names the request in the log.
ACTION: Final = "extend messages"


@dataclass(frozen=True, slots=True, eq=False)
class ExtensionBatch:
    """Due extensions of one queue: `sent` goes to SQS; `others` have lapsed or need no request."""

    queue: Queue
    sent: list[Extension]
    others: list[Extension]

    def __len__(self) -> int:
        return len(self.sent)


class Heartbeat:
    """The work of the heartbeat's lane.

    Args:
        held: the deliveries that are held, guarded by the pump's lock.
        resume: carries out a settlement that waited for an extension in flight.

    Attributes:
        lane: its lane, to be started.
    """

    def __init__(self, held: Held, resume: Callable[[Delivery, Direct], None], pump: Pump) -> None:
        self._held = held
        self._now = pump.now
        self._resume = resume
        self.lane: Lane[ExtensionBatch] = pump.lane("extends messages", MAX_IN_FLIGHT, self)
        self._outages = Outages(logger, pump.clock)
        self._slow: set[str] = set()  # queues whose latest extension timed out; each access is atomic

    def notice(self) -> None:
        """Note that deliveries were added, which may be due earlier. Under the lock."""
        due = self._held.next_extension()
        if due is not None and due < self.lane.next_due:
            self.lane.wake_for(due, self._now())

    def why_not(self, queue: Queue) -> SQSError | None:
        """Why messages of the queue could not be extended lately; `None` if they were extended."""
        return self._outages.error(ACTION, queue.name)

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `pump.Work`
        return self._held.next_extension()

    def ready(self) -> int:
        return max(1, self._held.batches_due(self._now()))

    def take(self, now: float) -> ExtensionBatch | None:
        due = self._held.take_due(now)
        if not due:
            return None
        sent = [each for each in due if each.seconds]
        return ExtensionBatch(due[0].delivery.queue, sent, [each for each in due if not each.seconds])

    def send(self, batch: ExtensionBatch, since: float) -> BatchResult:
        if not batch.sent:
            return BatchResult({})
        changes = [(handle, seconds) for _, handle, seconds in batch.sent]
        left = min(each.delivery.deadline for each in batch.sent) - since
        urgent = left < URGENT_SECONDS and batch.queue.name not in self._slow
        return batch.queue.sqs.change_visibility(batch.queue.url, changes, urgent=urgent)

    def conclude(self, batch: ExtensionBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        """Note the results, then tell the runs and listeners."""
        now, answered = self._now(), self._held.answered
        why = self.why_not(batch.queue)
        measured = batch.sent if ExtensionEnded.is_wanted() else ()
        with self.lane.lock:
            late = [self._held.lateness(each.delivery, now) for each in measured]
            ended = [answered(each, None, since, now, why) for each in batch.others]
            for position, each in enumerate(batch.sent):
                ended.append(answered(each, failed.get(position), since, now, why))
        if batch.sent:
            self._note_pace(batch.queue.name, now - since, failed.values())
        if batch.sent and (failed or self._outages):
            # An invalid handle is reported by the message's own event.
            passing = (each for each in failed.values() if not isinstance(each, ReceiptHandleInvalidError))
            self._outages.note(ACTION, batch.queue.name, next(passing, None), since)
        for position, seconds in enumerate(late):
            if position not in failed:
                emit(ExtensionEnded(batch.queue.name, seconds))
        is_wanted = Extended.is_wanted()
        for one, (_, handle, seconds) in zip(ended, [*batch.others, *batch.sent], strict=True):
            if not one.extended or is_wanted or one.waiting is not None:
                self._tell(one, handle, seconds)

    def _note_pace(self, queue: str, seconds: float, errors: Collection[SQSError]) -> None:
        """After an extension timed out, let the next ones wait longer, until SQS answers promptly again."""
        if any(isinstance(error, AnswerLostError) for error in errors):
            self._slow.add(queue)
        elif seconds < PROMPT_SECONDS:
            self._slow.discard(queue)

    def _tell(self, one: Answered, receipt: str, seconds: int) -> None:
        """Tell a delivery's run and listeners, unless it was deleted or received again meanwhile."""
        delivery, waiting = one.delivery, one.waiting
        if one.held or waiting is not None:
            if one.lost is not None:
                emit(Lost(delivery.facts, one.lost))
            elif one.extended and Extended.is_wanted():
                emit(Extended(delivery.facts, seconds))
        if one.held and one.lost is not None and (on_lost := delivery.on_lost) is not None:
            _guarded("the run of a lost message could not be ended", on_lost, receipt)
        if waiting is not None:
            _guarded("a settlement was lost, and its message comes back", self._resume, delivery, waiting)


def _guarded(sentence: str, act: Callable[..., object], *args: object) -> None:
    """Call `act` and log its error, which must not affect the other deliveries of the batch."""
    try:
        act(*args)
    except Exception:  # noqa: BLE001 - logged, if that works
        log_safely(logger.exception, sentence)
