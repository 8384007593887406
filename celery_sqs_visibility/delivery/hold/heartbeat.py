"""Keeps what this process holds hidden, be it buffered, reserved or running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.delivery.hold.ledger import Ledger, Returned
from celery_sqs_visibility.delivery.model import Delivery, Settlement
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.events import Event, Extended, Lost, emit, log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: At 50 ms a request, four threads extend 800 messages a second.
MOST_THREADS: Final = 4

DEADLINE_PASSED = "its visibility timeout ran out before it could be extended"
HORIZON_REACHED = "it was held for the 12 hours that SQS allows"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Deliveries of one queue whose time has come.

    Attributes:
        extensions: those to be extended, and by how many seconds from now.
        others: those that cannot be, or need not be.
    """

    queue: Queue
    extensions: list[tuple[Delivery, int]]
    others: list[Delivery]

    def __len__(self) -> int:
        return len(self.extensions)


@dataclass(frozen=True, slots=True)
class End:
    """How an extension ended, for those who are to hear of it.

    Attributes:
        delivery: the one that was being extended.
        found: what the ledger says of it.
        event: what happened, if that is worth telling.
    """

    delivery: Delivery
    found: Returned
    event: Event | None = None


class Heartbeat:
    """What the heartbeat's threads do when it is due: see `crew.Work`.

    Args:
        ledger: what is held.
        clock: the monotonic clock of its deadlines.
        resume: carries out a settlement that had to wait for an extension in flight.

    Attributes:
        crew: its threads, to be started.
    """

    def __init__(self, ledger: Ledger, clock: Clock, resume: Callable[[Delivery, Settlement], None]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._resume = resume
        self.batch_threads: BatchThreads[Batch] = BatchThreads(
            "sqs-heartbeat", "extends messages", MOST_THREADS, self, clock
        )
        # Guarded by the crew's lock:
        self._minded: float | None = None  # the instant that was last found to be the next
        self._troubles: dict[str, Outage] = {}  # by queue

    def notice(self) -> None:
        """Deliveries were added: something may be due earlier than was thought. Any thread."""
        due = self._ledger.next_extension()
        with self.batch_threads.lock:
            if due is not None and (self._minded is None or due < self._minded):
                self.batch_threads.wake()

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `crew.Work`
        """See `crew.Work`."""
        self._minded = self._ledger.next_extension()
        return self._minded

    def ready(self) -> int:
        """See `crew.Work`."""
        return max(1, self._ledger.batches_due(self._clock.monotonic()))

    def take(self, now: float) -> Batch | None:
        """The next batch of those that are due."""
        due = self._ledger.take_due(now)
        if not due:
            return None
        return Batch(
            due[0][0].queue,
            extensions=[(delivery, seconds) for delivery, seconds in due if seconds],
            others=[delivery for delivery, seconds in due if not seconds],
        )

    def send(self, batch: Batch, _since: float) -> BatchResult:
        """See `crew.Work`."""
        if not batch.extensions:
            return BatchResult({})
        changes = [(delivery.handle, seconds) for delivery, seconds in batch.extensions]
        return batch.queue.sqs.change_visibility(batch.queue.url, changes)

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `crew.Work`. The ledger hears of all of them before anybody else hears of the first."""
        ends = [self._note_other(delivery, since) for delivery in batch.others]
        for position, (delivery, seconds) in enumerate(batch.extensions):
            ends.append(self._note(delivery, seconds, since, failed.get(position)))
        if batch.extensions:
            self._tell_trouble(batch.queue, since, failed.values())
        for end in ends:
            self._tell(end)

    def _note_other(self, delivery: Delivery, now: float) -> End:
        if delivery.deadline <= now:
            return self._lose(delivery, self._why_lapsed(delivery))
        return End(delivery, self._ledger.not_extensible(delivery, now))

    def _note(self, delivery: Delivery, seconds: int, since: float, error: SQSError | None) -> End:
        if error is None:
            found = self._ledger.extended(delivery, since + seconds)
            return End(delivery, found, Extended(delivery.facts, seconds))
        if isinstance(error, ReceiptHandleInvalidError):
            return self._lose(delivery, str(error))
        return End(delivery, self._ledger.not_extended(delivery, self._clock.monotonic()))

    def _lose(self, delivery: Delivery, reason: str) -> End:
        return End(delivery, self._ledger.refused(delivery), Lost(delivery.facts, reason))

    def _why_lapsed(self, delivery: Delivery) -> str:
        if delivery.at_horizon:
            return HORIZON_REACHED
        outage = self._troubles.get(delivery.queue.name)
        return f"{DEADLINE_PASSED}: {outage.error}" if outage and outage.error else DEADLINE_PASSED

    def _tell_trouble(self, queue: Queue, since: float, errors: Iterable[SQSError]) -> None:
        """One line when extending begins to fail, and one when it works again."""
        with self.batch_threads.lock:
            outage = self._troubles.get(queue.name)
            if outage is None:
                outage = Outage(logger, "extend messages", queue.name, self._clock)
                self._troubles[queue.name] = outage
        # Of a handle that was refused the message's own event tells.
        error = next((error for error in errors if not isinstance(error, ReceiptHandleInvalidError)), None)
        if error is None:
            outage.success(since)
        else:
            outage.failure(error)

    def _tell(self, end: End) -> None:
        """Of what was deleted or replaced meanwhile there is nothing to tell, and no run to be ended."""
        held, waiting = end.found
        if end.event is not None and (held or waiting is not None):
            emit(end.event)
        if held and isinstance(end.event, Lost) and (on_lost := end.delivery.on_lost) is not None:
            _guarded("what was to be done about a lost message failed", on_lost, end.delivery)
        if waiting is not None:
            _guarded("a settlement was lost, and its message comes back", self._resume, end.delivery, waiting)


def _guarded(sentence: str, act: Callable[..., object], *args: object) -> None:
    """The others of its batch are not to suffer from what goes wrong with one."""
    try:
        act(*args)
    except Exception:  # noqa: BLE001 - logged, if that works
        log_safely(logger.exception, sentence)
