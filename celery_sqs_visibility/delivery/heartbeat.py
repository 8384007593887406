"""Keeps what this process holds hidden, be it buffered, reserved or running."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.errors import HandleIsInvalid, SQSError
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.crew import Crew
from celery_sqs_visibility.delivery.events import Extended, Lost, emit
from celery_sqs_visibility.delivery.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delivery, Settlement
from celery_sqs_visibility.delivery.trouble import Trouble
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

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
        self.crew: Crew[Batch] = Crew("sqs-heartbeat", "extends messages", MOST_THREADS, self, clock)
        # Guarded by the crew's lock:
        self._batches: deque[tuple[Queue, list[Delivery]]] = deque()  # taken from the ledger
        self._minded: float | None = None  # the instant that was last found to be the next
        self._troubles: dict[str, Trouble] = {}  # by queue

    def notice(self) -> None:
        """Deliveries were added: something may be due earlier than was thought. Any thread."""
        due = self._ledger.next_extension()
        with self.crew.lock:
            if due is not None and (self._minded is None or due < self._minded):
                self.crew.call()

    def due(self, now: float) -> float | None:
        """See `crew.Work`."""
        self._minded = now if self._batches else self._ledger.next_extension()
        return self._minded

    def ready(self) -> int:
        """See `crew.Work`."""
        return max(1, len(self._batches))

    def take(self, now: float) -> Batch | None:
        """The next batch of those that are due."""
        if not self._batches:
            self._batches.extend(_batches(self._ledger.take_due(now)))
        if not self._batches:
            return None
        queue, deliveries = self._batches.popleft()
        wanted = [(delivery, self._ledger.extension(delivery, now)) for delivery in deliveries]
        return Batch(
            queue,
            extensions=[(delivery, seconds) for delivery, seconds in wanted if seconds],
            others=[delivery for delivery, seconds in wanted if not seconds],
        )

    def send(self, batch: Batch, _since: float) -> BatchResult:
        """See `crew.Work`."""
        if not batch.extensions:
            return BatchResult({})
        changes = [(delivery.handle, seconds) for delivery, seconds in batch.extensions]
        return batch.queue.sqs.change_visibility(batch.queue.url, changes)

    def conclude(self, batch: Batch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `crew.Work`."""
        for delivery in batch.others:
            self._not_worth_it(delivery, since)
        if batch.extensions:
            self._tell_trouble(batch.queue, since, failed.values())
        for position, (delivery, seconds) in enumerate(batch.extensions):
            self._note(delivery, seconds, since + seconds, failed.get(position))

    def _not_worth_it(self, delivery: Delivery, now: float) -> None:
        if delivery.deadline <= now:
            self._lose(delivery, self._why_lapsed(delivery))
        else:
            self._after(delivery, self._ledger.not_extensible(delivery, now))

    def _tell_trouble(self, queue: Queue, since: float, errors: Iterable[SQSError]) -> None:
        """One line when extending begins to fail, and one when it works again."""
        with self.crew.lock:
            trouble = self._troubles.get(queue.name)
            if trouble is None:
                trouble = Trouble(
                    logger, "cannot extend messages", "extends messages", queue.name, self._clock
                )
                self._troubles[queue.name] = trouble
        # Of a handle that was refused the message's own event tells.
        error = next((error for error in errors if not isinstance(error, HandleIsInvalid)), None)
        if error is None:
            trouble.worked(since)
        else:
            trouble.failed(error)

    def _note(self, delivery: Delivery, seconds: int, deadline: float, error: SQSError | None) -> None:
        if error is None:
            waiting = self._ledger.extended(delivery, deadline)
            emit(Extended(delivery.facts, seconds))
            self._after(delivery, waiting)
        elif isinstance(error, HandleIsInvalid):
            self._lose(delivery, str(error))
        else:
            self._after(delivery, self._ledger.not_extended(delivery, self._clock.monotonic()))

    def _lose(self, delivery: Delivery, reason: str) -> None:
        waiting = self._ledger.refused(delivery)
        if delivery.successor is None:  # otherwise it is the old handle that is lost, and not the message
            self._tell_lost(delivery, reason)
        self._after(delivery, waiting)

    def _why_lapsed(self, delivery: Delivery) -> str:
        if delivery.at_horizon:
            return HORIZON_REACHED
        trouble = self._troubles.get(delivery.queue.name)
        return f"{DEADLINE_PASSED}: {trouble.error}" if trouble and trouble.error else DEADLINE_PASSED

    def _tell_lost(self, delivery: Delivery, reason: str) -> None:
        emit(Lost(delivery.facts, reason))
        if delivery.on_lost is not None:
            try:
                delivery.on_lost()
            except Exception:
                logger.exception("what was to be done about a lost message failed")

    def _after(self, delivery: Delivery, waiting: Settlement | None) -> None:
        if waiting is not None:
            try:
                self._resume(delivery, waiting)
            except Exception:
                # The others of its batch are not to be left as being extended for ever.
                logger.exception("a settlement was lost, and its message comes back")


def _batches(due: dict[Queue, list[Delivery]]) -> Iterator[tuple[Queue, list[Delivery]]]:
    for queue, deliveries in due.items():
        for start in range(0, len(deliveries), BATCH_ENTRIES):
            yield queue, deliveries[start : start + BATCH_ENTRIES]
