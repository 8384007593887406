"""Leases of the keys of exclusive tasks, renewed whenever the heartbeat has extended their messages.

A key's lease ends with its message's visibility timeout: when a worker dies, the key is free as soon as
another worker can have the message. A run whose message is lost goes on, and its key stays leased, so that
the message's next run waits. So a key is also renewed shortly before its message is lost.
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
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.options import QueueOptions
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.stores.port import ExclusiveStore, Renewal

logger = get_logger(__name__)

#: At 5 ms a renewal, two at a time renew 400 a second.
MAX_IN_FLIGHT: Final = 2

#: A failed renewal is tried again after this part of the time that is left, but not sooner than this.
RETRY_FRACTION: Final = 4
RETRY_FLOOR_SECONDS: Final = 1.0

#: A key whose message is not extended is renewed this part of the visibility timeout before that ends, or
#: half a heartbeat interval before: by then the heartbeat has tried.
MARGIN_FRACTION: Final = 6

#: How long a shutdown waits until the keys of orphaned runs are released.
RELEASE_SECONDS: Final = 1.0


@dataclass(eq=False)
class KeyLease:
    """The key of a run, which the run's request keeps alive.

    Attributes:
        until: the monotonic instant at which the lease ends, as far as it was renewed here.
        over: whether it is no longer renewed: it was lost, or is to be released.
    """

    key: str
    owner: str
    delivery: Delivery
    until: float = field(default=0.0, init=False)
    over: bool = field(default=False, init=False)

    @property
    def held(self) -> bool:
        """Whether the run has acquired the key, and not given it up."""
        lease = self.delivery.lease
        return not self.over and lease is not None and lease.holds_key

    @property
    def margin(self) -> float:
        """Seconds before the message's deadline at which no extension is to be waited for any more."""
        options = self._options
        return min(options.visibility_timeout / MARGIN_FRACTION, (options.heartbeat_interval or math.inf) / 2)

    def next_end(self, now: float) -> float:
        """The monotonic instant until which the lease is to last."""
        delivery = self.delivery
        if delivery.lost or delivery.deadline - now <= self.margin:
            return now + self._options.visibility_timeout
        return delivery.deadline

    @property
    def _options(self) -> QueueOptions:
        return self.delivery.holder.options.for_queue(self.delivery.queue.name)


@dataclass(eq=False)
class KeyBatch:
    """Leases to be renewed or released together; `lost` are those that other owners have by now."""

    leases: list[KeyLease]
    lost: list[KeyLease] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.leases)


class DueLeases:
    """Leases to be renewed or released, the earliest first. Not thread-safe.

    A heap, for thousands of leases. Entries of leases that are gone or were put again are skipped.
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
        """The instant at which the earliest falls due."""
        while self._heap and self._lease(self._heap[0]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[KeyLease]:
        """Remove one batch of due leases and return it."""
        due: list[KeyLease] = []
        while len(due) < BATCH_ENTRIES and self._heap and self._heap[0][0] <= now:
            lease = self._lease(heapq.heappop(self._heap))
            if lease is not None:
                del self._instants[lease]
                due.append(lease)
        return due

    def _lease(self, entry: tuple[float, int, ref[KeyLease]]) -> KeyLease | None:
        """The lease of an entry that is still valid."""
        at, _, reference = entry
        lease = reference()
        return lease if lease is not None and self._instants.get(lease) == at else None


class KeyLeases:
    """The work of its lane: see `pump.Work`. Safe to call from any thread, without I/O there."""

    def __init__(self, store: ExclusiveStore, clock: Clock = SYSTEM_CLOCK, pump: Pump | None = None) -> None:
        self.store = store
        self._clock = clock
        self._outage = Outage(logger, "renew the keys of exclusive tasks", "*", clock)
        pump = pump or Pump(clock)
        self.lane: Lane[KeyBatch] = pump.lane("renews the keys of exclusive tasks", MAX_IN_FLIGHT, self)
        # Guarded by the lane's lock:
        self._leases: WeakValueDictionary[tuple[str, str], KeyLease] = WeakValueDictionary()
        self._due = DueLeases()
        self._releasing: set[KeyLease] = set()
        self._ends: list[Callable[[], None]] = []

    def start(self) -> None:
        """Follow the messages' events from now on."""
        self._ends = [subscribe(self._on_event, kind) for kind in (Extended, Superseded, Lost)]
        self.lane.start()

    def stop(self) -> None:
        """Follow them no longer."""
        for end in self._ends:
            end()

    def add(self, lease: KeyLease) -> None:
        """Renew the lease from now on: its run begins."""
        facts = lease.delivery.facts
        with self.lane.lock:
            self._leases[facts.queue, facts.message_id] = lease
            self._renew_at(lease, lease.delivery.deadline - lease.margin)

    def release(self, lease: KeyLease, delay: float = 0.0) -> None:
        """Release the key of a run that is over and could not release it itself."""
        with self.lane.lock:
            self._release_at(lease, self._clock.monotonic() + delay)

    def release_all(self) -> None:
        """Release all keys, within a second, before running tasks are handed back. The thread that drains."""
        with self.lane.lock:
            for lease in list(self._leases.values()):
                if lease.held:
                    self._release_at(lease, self._clock.monotonic())
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
        now = self._clock.monotonic()
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
        now = self._clock.monotonic()
        with self.lane.lock:
            for position, lease in enumerate(batch.leases):
                self._repeat(lease, now, failed=position in failed)
            # A release that has failed is not repeated: the lease lapses.
            self._releasing.difference_update(batch.leases)
        for lease in batch.lost:
            if lease.held:  # else its run has ended meanwhile
                lease.over = True
                log_safely(
                    logger.warning,
                    "the key %r was lost: another worker may run the task, too (message_id=%s)",
                    lease.key,
                    lease.delivery.facts.message_id,
                )
                lease.delivery.tell_lost()

    def _repeat(self, lease: KeyLease, now: float, *, failed: bool) -> None:
        """Renew it again after a failure, or when no extension will ask for it."""
        if not lease.held:
            return
        at = lease.until - lease.margin
        if failed or lease.delivery.lost:
            # A lost message's key is renewed for the visibility timeout, each time half of it is over.
            pause = (lease.until - now) / (RETRY_FRACTION if failed else 2)
            at = now + max(pause, RETRY_FLOOR_SECONDS)
        self._renew_at(lease, min(at, self._due.get(lease, at)))

    def _renew_at(self, lease: KeyLease, at: float) -> None:
        """Renew or release it at that instant. Under the lane's lock."""
        self._due.put(lease, at)
        self.lane.wake()

    def _on_event(self, event: DeliveryEvent) -> None:
        """A message was extended or lost, or came back while it is held. Any of their threads."""
        facts = event.delivery
        with self.lane.lock:
            lease = self._leases.get((facts.queue, facts.message_id))
            if lease is None or lease.over:
                return
            now = self._clock.monotonic()
            # A key that is not acquired yet is acquired until the deadline.
            self._renew_at(lease, now if lease.held else lease.delivery.deadline - lease.margin)
