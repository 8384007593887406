"""Store in this process's memory, for tests that move the clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.exclusive import message_of
from celery_sqs_visibility.stores.port import (
    RECORD_SECONDS,
    Acquired,
    Acquisition,
    ExclusiveStore,
    Processed,
    Processing,
    Renewal,
)


@dataclass(slots=True)
class Record:
    """A key's record. Instants are monotonic; `lease_until` is `None` after a release."""

    owner: str = ""
    lease_until: float | None = None
    processed_until: float = 0.0
    checkpoint: str | None = None
    message: str | None = None
    retries: int = 0
    runs: int = 0


class MemoryStore(ExclusiveStore):
    """A store that other processes do not share, so only for tests."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _records
        self._records: dict[str, Record] = {}

    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        del kept  # no record is dropped
        with self._lock:
            now, record = self._clock.monotonic(), self._records.setdefault(key, Record())
            if record.processed_until > now:
                return Processed()
            left = (record.lease_until or 0.0) - now
            if left > 0 and record.owner != owner:
                return Processing(left, record.owner)
            _count_run(record, owner, retries)
            record.owner, record.lease_until = owner, now + seconds
            checkpoint = None if record.checkpoint is None else json.loads(record.checkpoint)
            runs = record.runs - 1
            return Acquired(checkpoint, record.retries + runs, runs)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return [self._renew(*renewal) for renewal in renewals]

    def _renew(self, key: str, owner: str, seconds: float) -> bool:
        with self._lock:
            self._records.setdefault(key, Record(owner, self._clock.monotonic()))
        return self._change(key, owner, lambda record, now: setattr(record, "lease_until", now + seconds))

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        def finished(record: Record, now: float) -> None:
            record.lease_until, record.processed_until = now, now + ttl
            record.checkpoint = record.message = None

        return self._change(key, owner, finished)

    def release(self, key: str, owner: str) -> bool:
        return self._change(key, owner, lambda record, _: setattr(record, "lease_until", None))

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        text = json.dumps(checkpoint)
        return self._change(key, owner, lambda record, _: setattr(record, "checkpoint", text))

    def _change(self, key: str, owner: str, change: Callable[[Record, float], None]) -> bool:
        with self._lock:
            record = self._records.get(key)
            if record is None or record.owner != owner or record.lease_until is None:
                return False
            change(record, self._clock.monotonic())
            return True


def _count_run(record: Record, owner: str, retries: int) -> None:
    message = message_of(owner)
    if record.message != message:
        record.message, record.retries, record.runs = message, retries, 1
    elif record.owner != owner:
        record.runs += 1
