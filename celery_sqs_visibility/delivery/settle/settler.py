"""Requests that tell SQS how deliveries ended: by several threads, each with a batch of settlements."""

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
    SettlementBatch,
    SettlementBatches,
)
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.delivery.outage import Outages
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.errors import AccessDeniedError, SQSError

logger = logging.getLogger(__name__)

#: At 50 ms a request, sixteen at a time settle 3,200 messages a second.
MAX_IN_FLIGHT: Final = 16

#: SQS has handled a request within this time, even if a busy process reads the answer later.
MAX_REQUEST_SECONDS: Final = 0.1

#: Names each kind of request in the log when it fails, and when it works again.
ACTIONS: Mapping[type[Delete | Hide], str] = {
    Delete: "delete messages",
    Hide: "hide or release messages",
}

#: Called from a thread of the pump when the settlements of a request are over, with the monotonic instant
#: from which the delay of a visibility change counts.
Settled = Callable[[Iterable[Ended], float], None]


class Settler:
    """The work of the lane that sends settlements. The pump's lock guards `batches`."""

    def __init__(
        self,
        batches: SettlementBatches,
        settled: Settled,
        permissions: CopyPermissions,
        pump: Pump,
    ) -> None:
        self.batches = batches
        self.due, self.ready, self.take = batches.due, batches.ready, batches.take
        self._now = pump.now
        self._settled = settled
        self._permissions = permissions
        self.lane: Lane[SettlementBatch] = pump.lane("settles messages", MAX_IN_FLIGHT, self)
        self._outages = Outages(logger, pump.clock)

    def notice(self, now: float) -> None:
        """Note that settlements were added, which may be due earlier. Under the lock."""
        self.batches.news = False
        self.lane.wake_for(self.batches.due(now), now)

    def flush(self, timeout: float) -> bool:
        """Send everything now. Returns whether all was done within `timeout` seconds."""
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
            now = self._now()
            ended: Iterable[Ended] = zip(batch.settlements, itertools.repeat(None))
            some_done = bool(batch.settlements)
            if failed:
                with self.lane.lock:
                    ended = self.batches.answered(batch, failed, since, now)
                    self.notice(now)
                finished = len(ended) + len(batch.late)
                some_done = any(error is None for _, error in ended)
            if self.batches.tries_again and (failed or self._outages):
                # A settlement that SQS refuses for good has its own event.
                passing = (error for error in failed.values() if not isinstance(error, FINAL_ERRORS))
                queue, kind = batch.origin.queue, batch.origin.kind
                self._outages.note(ACTIONS[kind], queue.name, next(passing, None), since, worked=some_done)
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
