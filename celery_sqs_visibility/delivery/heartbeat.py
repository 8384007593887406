"""Keeps what this process holds hidden, be it buffered, reserved or running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from celery_sqs_visibility.aws.errors import HandleIsInvalid, SQSError
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Extended, Lost, emit
from celery_sqs_visibility.delivery.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delivery, Settlement
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: After a bug in the beat itself, seconds until it goes on.
PAUSE_AFTER_BUG = 1.0

DEADLINE_PASSED = "its visibility timeout ran out before it could be extended"


class Heartbeat:
    """One beat of work, `beat`, and the thread that does it when it is due.

    Args:
        ledger: what is held.
        clock: the monotonic clock of its deadlines.
        resume: carries out a settlement that had to wait for an extension in flight.
    """

    def __init__(self, ledger: Ledger, clock: Clock, resume: Callable[[Delivery, Settlement], None]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._resume = resume
        self._changed = threading.Condition()  # guards _wakes_at, _stopping, _thread
        self._wakes_at: float | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; harmless if it runs."""
        with self._changed:
            self._stopping = False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="sqs-heartbeat", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread after its present call; harmless if it does not run. Does not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def notice(self) -> None:
        """Deliveries were added: something may be due earlier than the thread sleeps. Any thread."""
        due = self._ledger.next_extension()
        with self._changed:
            if due is not None and (self._wakes_at is None or due < self._wakes_at):
                self._changed.notify_all()

    def beat(self) -> None:
        """Extend what is due. Called by the heartbeat's thread."""
        due, lost = self._ledger.take_due(self._clock.monotonic())
        for delivery in lost:
            emit(Lost(delivery.facts, DEADLINE_PASSED))
        for queue, batch in _batches(due):
            self._extend(queue, batch)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.beat()
            except Exception:
                logger.exception("heartbeat stumbled and goes on")
                self._wait(self._clock.monotonic() + PAUSE_AFTER_BUG)
            self._wait(self._ledger.next_extension())

    def _wait(self, until: float | None) -> None:
        with self._changed:
            # What was added since the caller looked is seen here, under the lock that notice() takes.
            soonest = self._ledger.next_extension()
            if soonest is not None and (until is None or soonest < until):
                until = soonest
            self._wakes_at = until
            timeout = None if until is None else until - self._clock.monotonic()
            if not self._stopping and (timeout is None or timeout > 0):
                self._changed.wait(timeout)
            self._wakes_at = None

    def _extend(self, queue: Queue, batch: list[Delivery]) -> None:
        now = self._clock.monotonic()
        asked = [(delivery, self._ledger.extension(delivery, now)) for delivery in batch]
        extensions = [(delivery, seconds) for delivery, seconds in asked if seconds > 0]
        for delivery, seconds in asked:
            if seconds <= 0:
                self._after(delivery, self._ledger.not_extended(delivery, now))
        if not extensions:
            return
        try:
            result = queue.sqs.change_visibility(queue.url, [(d.handle, s) for d, s in extensions])
        except SQSError as error:
            result = BatchResult(dict.fromkeys(range(len(extensions)), error))
        for position, (delivery, seconds) in enumerate(extensions):
            self._note(delivery, seconds, now + seconds, result.failed.get(position))

    def _note(self, delivery: Delivery, seconds: int, deadline: float, error: SQSError | None) -> None:
        if error is None:
            waiting = self._ledger.extended(delivery, deadline)
            emit(Extended(delivery.facts, seconds))
        elif isinstance(error, HandleIsInvalid):
            waiting = self._ledger.refused(delivery)
            emit(Lost(delivery.facts, str(error)))
        else:
            logger.debug("extension failed", extra={"error": str(error), "queue": delivery.queue.name})
            waiting = self._ledger.not_extended(delivery, self._clock.monotonic())
        self._after(delivery, waiting)

    def _after(self, delivery: Delivery, waiting: Settlement | None) -> None:
        if waiting is not None:
            self._resume(delivery, waiting)


def _batches(due: dict[Queue, list[Delivery]]) -> Iterator[tuple[Queue, list[Delivery]]]:
    for queue, deliveries in due.items():
        for start in range(0, len(deliveries), BATCH_ENTRIES):
            yield queue, deliveries[start : start + BATCH_ENTRIES]
