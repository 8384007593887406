"""Leases of the keys of exclusive tasks, renewed whenever the heartbeat has extended their messages.

A key's lease ends with its message's visibility timeout: when a worker dies, the key is free as soon as
another worker can receive the message. A run whose message is lost goes on, and keeps its key, so that the
message's next run waits. So a key is also renewed shortly before its message is lost.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from celery.utils.log import get_logger

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import SQSError, StoreError, UnavailableError
from celery_sqs_visibility.events import DeliveryEvent, Extended, Lost, Superseded, log_safely, subscribe
from celery_sqs_visibility.policy.options import QueueOptions
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.stores.port import ExclusiveStore, Renewal

logger = get_logger(__name__)

#: At 5 ms a renewal, two at a time renew 400 a second.
MAX_IN_FLIGHT: Final = 2

#: A failed renewal is tried again after the remaining time divided by this, but not sooner than the floor.
RETRY_FRACTION: Final = 4
RETRY_FLOOR_SECONDS: Final = 1.0

#: A key whose message is not extended is renewed before the visibility timeout ends: by the timeout divided
#: by this, or by half a heartbeat interval if that is less. The heartbeat has been due by then.
MARGIN_FRACTION: Final = 6

#: How long a shutdown waits for the release of the keys of orphaned runs.
RELEASE_SECONDS: Final = 1.0


@dataclass(eq=False)
class KeyLease:
    """The key of a run. The run's request holds the only strong reference.

    Attributes:
        until: the monotonic instant at which the lease ends, according to the last renewal here.
        over: whether it is no longer renewed, because it was lost or is to be released.
    """

    key: str
    owner: str
    delivery: Delivery
    until: float = field(default=0.0, init=False)
    over: bool = field(default=False, init=False)

    @property
    def held(self) -> bool:
        """Whether the run has acquired the key and still has it."""
        lease = self.delivery.lease
        return not self.over and lease is not None and lease.holds_key

    @property
    def margin(self) -> float:
        """Seconds before the message's deadline from which an extension is no longer expected."""
        options = self._options
        return min(options.visibility_timeout / MARGIN_FRACTION, (options.heartbeat_interval or math.inf) / 2)

    def next_end(self, now: float) -> float:
        """The monotonic instant until which to renew the lease."""
        delivery = self.delivery
        if delivery.lost_by(now + self.margin):
            return now + self._options.visibility_timeout
        return delivery.deadline

    @property
    def _options(self) -> QueueOptions:
        return self.delivery.holder.options.for_queue(self.delivery.queue.name)


@dataclass(eq=False)
class KeyBatch:
    """Leases to be renewed or released together; in `lost`, those that have other owners by now."""

    leases: list[KeyLease]
    lost: list[KeyLease] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.leases)


class DueLeases:
    """Leases to be renewed or released, the earliest first. Not thread-safe.

    A heap, because there may be thousands. Entries of leases that are gone or rescheduled are skipped.
    """

    def __init__(self) -> None:
        self._instants: WeakKeyDictionary[KeyLease, float] = WeakKeyDictionary()
        self._heap: list[tuple[float, int, ref[KeyLease]]] = []
        self._ties = itertools.count()

    def __len__(self) -> int:
        return len(self._instants)

    def get(self, lease: KeyLease, default: float) -> float:
        """The instant at which the lease falls due."""
        return self._instants.get(lease, default)

    def put(self, lease: KeyLease, at: float) -> None:
        """Set the instant at which the lease falls due."""
        self._instants[lease] = at
        heapq.heappush(self._heap, (at, next(self._ties), ref(lease)))
        if len(self._heap) > 2 * len(self._instants) + BATCH_ENTRIES:
            self._heap = [entry for entry in self._heap if self._lease(entry) is not None]
            heapq.heapify(self._heap)

    def first(self) -> float | None:
        """The instant at which the earliest lease falls due; `None` if there is none."""
        while self._heap and self._lease(self._heap[0]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[KeyLease]:
        """Take out one batch of due leases."""
        due: list[KeyLease] = []
        while len(due) < BATCH_ENTRIES and self._heap and self._heap[0][0] <= now:
            lease = self._lease(heapq.heappop(self._heap))
            if lease is not None:
                del self._instants[lease]
                due.append(lease)
        return due

    def _lease(self, entry: tuple[float, int, ref[KeyLease]]) -> KeyLease | None:
        """The lease of an entry, if the entry is still valid."""
        at, _, reference = entry
        lease = reference()
        return lease if lease is not None and self._instants.get(lease) == at else None


class KeyLeases:
    """The work of the lane that renews keys. Any thread may call it; the lane makes the requests."""

    def __init__(self, store: ExclusiveStore, pump: Pump) -> None:
        self.store = store
        self._now = pump.now
        self._outage = Outage(logger, "renew the keys of exclusive tasks", "*", pump.clock)
        self.lane: Lane[KeyBatch] = pump.lane("renews the keys of exclusive tasks", MAX_IN_FLIGHT, self)
        # Guarded by the lane's lock:
        self._leases: WeakValueDictionary[tuple[str, str], KeyLease] = WeakValueDictionary()
        self._due = DueLeases()
        self._releasing: set[KeyLease] = set()
        self._ends: list[Callable[[], None]] = []

    def start(self) -> None:
        """Subscribe to the messages' events, and start the lane."""
        self._ends = [subscribe(self._on_event, kind) for kind in (Extended, Superseded, Lost)]
        self.lane.start()

    def stop(self) -> None:
        """Unsubscribe from the messages' events."""
        for end in self._ends:
            end()

    def add(self, lease: KeyLease) -> None:
        """Renew the lease from now on, because its run begins."""
        facts = lease.delivery.facts
        with self.lane.lock:
            self._leases[facts.queue, facts.message_id] = lease
            self._renew_at(lease, lease.delivery.deadline - lease.margin)

    def release(self, lease: KeyLease, delay: float = 0.0) -> None:
        """Release the key of a run that is over and could not release the key itself."""
        with self.lane.lock:
            self._release_at(lease, self._now() + delay)

    def release_all(self) -> None:
        """Release all keys, within a second, before running tasks are handed back. The drain's thread."""
        with self.lane.lock:
            for lease in list(self._leases.values()):
                if lease.held:
                    self._release_at(lease, self._now())
            self.lane.wait_until(lambda: not self._releasing, RELEASE_SECONDS)

    def _release_at(self, lease: KeyLease, at: float) -> None:
        lease.over = True
        self._releasing.add(lease)
        self._renew_at(lease, at)

    def due(self, now: float) -> float | None:  # noqa: ARG002 - see `pump.Work`
        return self._due.first()

    def ready(self) -> int:
        return -(-len(self._due) // BATCH_ENTRIES)

    def take(self, now: float) -> KeyBatch | None:
        due = self._due.take(now)
        return KeyBatch(due) if due else None

    def send(self, batch: KeyBatch, _since: float) -> BatchResult:
        now = self._now()
        renewed = [(lease, lease.next_end(now)) for lease in batch.leases if lease.held]
        try:
            for lease in batch.leases:
                if lease in self._releasing:
                    self.store.release(lease.key, lease.owner)
            kept = self.store.renew(
                [Renewal(lease.key, lease.owner, until - now) for lease, until in renewed]
            )
        except StoreError as error:
            raise UnavailableError(str(error)) from error
        for (lease, until), is_kept in zip(renewed, kept, strict=True):
            lease.until = until
            if not is_kept:
                batch.lost.append(lease)
        return BatchResult({})

    def conclude(self, batch: KeyBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        if failed:
            self._outage.failure(next(iter(failed.values())))
        else:
            self._outage.success(since)
        now = self._now()
        with self.lane.lock:
            for position, lease in enumerate(batch.leases):
                self._repeat(lease, now, failed=position in failed)
            # A failed release is not repeated: the lease lapses.
            self._releasing.difference_update(batch.leases)
        for lease in batch.lost:
            if lease.held:  # otherwise its run has ended meanwhile
                lease.over = True
                log_safely(
                    logger.warning,
                    "the key %r was lost: another worker may run the task, too (message_id=%s)",
                    lease.key,
                    lease.delivery.facts.message_id,
                )
                lease.delivery.tell_lost()

    def _repeat(self, lease: KeyLease, now: float, *, failed: bool) -> None:
        """Schedule the next renewal after a failure, or if no extension will trigger it."""
        if not lease.held:
            return
        at = lease.until - lease.margin
        if failed or lease.delivery.lost:
            # The key of a lost message is renewed whenever half of the visibility timeout is over.
            pause = (lease.until - now) / (RETRY_FRACTION if failed else 2)
            at = now + max(pause, RETRY_FLOOR_SECONDS)
        self._renew_at(lease, min(at, self._due.get(lease, at)))

    def _renew_at(self, lease: KeyLease, at: float) -> None:
        """Renew or release the lease at that instant. Under the lane's lock."""
        self._due.put(lease, at)
        self.lane.wake()

    def _on_event(self, event: DeliveryEvent) -> None:
        """Handle the extension, loss or repeated receive of a held message. Any thread that emits."""
        facts = event.delivery
        with self.lane.lock:
            lease = self._leases.get((facts.queue, facts.message_id))
            if lease is None or lease.over:
                return
            now = self._now()
            # A key that is not acquired yet will be acquired until the deadline.
            self._renew_at(lease, now if lease.held else lease.delivery.deadline - lease.margin)
