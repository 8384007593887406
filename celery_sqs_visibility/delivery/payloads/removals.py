"""Removes the payloads of deleted messages from S3, in batches, one at a time; retries for a while."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.object_store import MAX_DELETED_OBJECTS, ObjectStore
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import PASSING_ERRORS, CredentialsRefusedError, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.backoff import pause

logger = logging.getLogger(__name__)

#: A removal waits this long for others to share its request.
LINGER_SECONDS: Final = 1.0

#: How long a failed removal is retried. Then the bucket's lifecycle rule removes the payload.
TRY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Removal:
    """A key to remove. Instants are monotonic."""

    key: str
    until: float
    not_before: float
    failures: int = 0


class Removals:
    """Removes payloads. Any thread may call `submit`, which does not block."""

    def __init__(self, objects: ObjectStore, pump: Pump) -> None:
        self._objects = objects
        self._now = pump.now
        self._outage = Outage(logger, "remove payloads", objects.bucket, pump.clock, kind="bucket")
        self.lane: Lane[list[Removal]] = pump.lane("removes payloads from S3", 1, self)
        self._lock = self.lane.lock  # guards everything below
        # A heap: (not before, tie-break, removal)
        self._waiting: list[tuple[float, int, Removal]] = []
        self._ties = itertools.count()
        self.unfinished = 0
        self.flushing = 0  # flushes under way

    def submit(self, key: str) -> None:
        """Remove the object of a deleted message soon."""
        now = self._now()
        with self._lock:
            self.unfinished += 1
            self._wait([Removal(key, now + TRY_SECONDS, now + LINGER_SECONDS)])
            self.lane.wake()

    def flush(self, timeout: float) -> bool:
        """Remove everything without lingering. Returns whether all is removed within `timeout` seconds."""
        return self.lane.flush(self, timeout)

    def due(self, now: float) -> float | None:
        if not self._waiting:
            return None
        # A flush waits only for pauses after failures.
        if self.flushing and any(not removal.failures for _, _, removal in self._waiting):
            return now
        return self._waiting[0][0]

    def _wait(self, removals: Iterable[Removal]) -> None:
        for removal in removals:
            heapq.heappush(self._waiting, (removal.not_before, next(self._ties), removal))

    def ready(self) -> int:
        return math.ceil(len(self._waiting) / MAX_DELETED_OBJECTS)

    def take(self, now: float) -> list[Removal] | None:
        """Take all removals once one of them is due."""
        due = self.due(now)
        if due is None or due > now:
            return None
        count = min(len(self._waiting), MAX_DELETED_OBJECTS)
        return [heapq.heappop(self._waiting)[2] for _ in range(count)]

    def send(self, batch: list[Removal], _since: float) -> BatchResult:
        return self._objects.delete([removal.key for removal in batch])

    def conclude(self, batch: list[Removal], since: float, failed: Mapping[int, SQSError]) -> None:
        not_before = self._now() + pause(1 + max((batch[i].failures for i in failed), default=0))
        again = {i for i, error in failed.items() if _may_pass(error) and not_before < batch[i].until}
        left = [batch[i].key for i in failed if i not in again]
        if failed:
            self._outage.failure(next(iter(failed.values())))
        else:
            self._outage.success(since)
        if left:
            facts = Fields(bucket=self._objects.bucket, objects=len(left), first=left[0])
            log_safely(
                logger.warning, "payloads of deleted messages stay in S3 (%s)", facts, extra={"sqs": facts}
            )
        with self._lock:
            self._wait(
                Removal(batch[i].key, batch[i].until, not_before, batch[i].failures + 1)
                for i in sorted(again)
            )
            self.unfinished -= len(batch) - len(again)
            self.lane.wake()


def _may_pass(error: SQSError) -> bool:
    return isinstance(error, (*PASSING_ERRORS, CredentialsRefusedError))
