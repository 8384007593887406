"""Requests that tell SQS how deliveries ended: by several threads, each of a batch of settlements."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.core.batches import (
    FINAL_ERRORS,
    TOO_LATE,
    Ended,
    PendingBatch,
    SettlementBatch,
    SettlementBatches,
)
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.errors import AccessDeniedError, SQSError
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: At 50 ms a request, sixteen at a time settle 3,200 messages a second.
MAX_IN_FLIGHT: Final = 16

#: SQS has handled a request after this time, though a busy process reads the answer later.
MAX_REQUEST_SECONDS: Final = 0.1

#: How the log calls each kind of request when it fails, and when it works again.
ACTIONS: Mapping[type[Delete | Hide], str] = {
    Delete: "delete messages",
    Hide: "hide or release messages",
}

#: Called from a thread of the pump when the settlements of a request are over, with the monotonic instant
#: from which the delay of a visibility change counts.
Settled = Callable[[Iterable[Ended], float], None]


class Settler:
    """Sends settlements: see `pump.Work`. The pump's lock guards `batches`."""

    def __init__(
        self,
        batches: SettlementBatches,
        clock: Clock,
        settled: Settled,
        permissions: CopyPermissions,
        pump: Pump,
    ) -> None:
        self.batches = batches
        self.due, self.ready, self.take = batches.due, batches.ready, batches.take
        self._clock = clock
        self._settled = settled
        self._permissions = permissions
        self.lane: Lane[SettlementBatch] = pump.lane("settles messages", MAX_IN_FLIGHT, self)
        self._outages: dict[PendingBatch, Outage] = {}  # each step is atomic

    def notice(self, now: float) -> None:
        """Settlements were added: the next request may be due earlier. Under the lock."""
        self.batches.news = False
        self.lane.wake_for(self.batches.due(now), now)

    def flush(self, timeout: float) -> bool:
        """Send everything now; whether all was done within `timeout` seconds."""
        return self.lane.flush(self.batches, timeout)

    def send(self, batch: SettlementBatch, _since: float) -> BatchResult:
        queue, kind = batch.origin.queue, batch.origin.kind
        if not batch.settlements:
            return BatchResult({})
        if kind is Delete:
            return queue.sqs.delete(queue.url, [one.delivery.handle for one in batch.settlements])
        changes = [(one.delivery.handle, one.seconds) for one in batch.settlements]
        return queue.sqs.change_visibility(queue.url, changes)

    def conclude(self, batch: SettlementBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        finished = len(batch.settlements) + len(batch.late)
        try:
            now = self._clock.monotonic()
            ended: Iterable[Ended] = zip(batch.settlements, itertools.repeat(None))
            some_done = bool(batch.settlements)
            if failed:
                with self.lane.lock:
                    ended = self.batches.answered(batch, failed, since, now)
                    self.notice(now)
                finished = len(ended) + len(batch.late)
                some_done = any(error is None for _, error in ended)
            if self.batches.tries_again:
                self._note_outage(batch.origin, failed, since, some_done=some_done)
            if batch.origin.kind is Delete:
                self._note_permission(batch, failed, some_done=some_done)
            self._settled(ended, min(now, since + MAX_REQUEST_SECONDS))
            if batch.late:
                self._settled([(one, TOO_LATE) for one in batch.late], now)
        finally:
            with self.lane.lock:
                self.batches.unfinished -= finished

    def _note_permission(
        self, batch: SettlementBatch, failed: Mapping[int, SQSError], *, some_done: bool
    ) -> None:
        denied = next((error for error in failed.values() if isinstance(error, AccessDeniedError)), None)
        if denied is not None:
            self._permissions.note_deletes_refused(batch.origin.queue, denied)
        elif some_done:
            self._permissions.note_deleted(batch.origin.queue)

    def _note_outage(
        self, pending: PendingBatch, failed: Mapping[int, SQSError], since: float, *, some_done: bool
    ) -> None:
        """Log failures that are tried again. A settlement that SQS refuses for good has its own event."""
        error = next((error for error in failed.values() if not isinstance(error, FINAL_ERRORS)), None)
        outage = self._outages.get(pending)
        if error is not None:
            new = Outage(logger, ACTIONS[pending.kind], pending.queue.name, self._clock)
            (outage or self._outages.setdefault(pending, new)).failure(error)
        elif outage is not None and some_done:
            outage.success(since)
