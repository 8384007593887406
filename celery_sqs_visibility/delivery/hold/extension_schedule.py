"""Which deliveries are to be extended when, so that they share requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: How many slots the time from one extension to the next is cut into: deliveries of one slot are extended
#: together.
SLOTS = 4

#: An extension that failed is tried again at multiples of this many seconds, so that retries share requests.
RETRY_GRAIN = 0.25


class ExtensionSchedule:
    """Deliveries by the slot of time in which they are to be extended. Not thread-safe: the ledger locks.

    A slot falls due as a whole, at its beginning. Where its last batch has room, deliveries of later slots
    are taken along: their extension then costs nothing, and from there on they share a slot. A delivery stays
    here until the batch that extends it is taken.

    Args:
        interval: seconds before or after which deliveries are extended again, whichever is less: a slot must
            be shorter, or what was just extended would be due at once.
    """

    def __init__(self, interval: float) -> None:
        self._grain = interval / SLOTS
        # By the instant at which they fall due, and by queue.
        self._slots: dict[float, dict[Queue, dict[Delivery, None]]] = {}

    def add(self, delivery: Delivery, at: float) -> None:
        """Extend it at that monotonic instant, or up to a slot earlier."""
        self._put(delivery, math.floor(at / self._grain) * self._grain)

    def add_not_before(self, delivery: Delivery, at: float) -> None:
        """Extend it at that monotonic instant, or a moment later."""
        self._put(delivery, math.ceil(at / RETRY_GRAIN) * RETRY_GRAIN)

    def remove(self, delivery: Delivery) -> None:
        """Do not extend it; harmless if it is not here."""
        slot, delivery.bucket = delivery.bucket, None
        if slot is None:
            return
        # A signal handler may remove others between any two of these lines.
        queues = self._slots.get(slot, {})
        members = queues.get(delivery.queue, {})
        members.pop(delivery, None)
        if not members:
            queues.pop(delivery.queue, None)
        if not queues:
            self._slots.pop(slot, None)

    def next_due(self) -> float | None:
        """The instant at which the earliest slot falls due."""
        return min(self._slots, default=None)

    def batches_due(self, now: float) -> int:
        """How many requests it takes to extend what is due."""
        due: Counter[Queue] = Counter()
        for slot, queues in self._slots.items():
            if slot <= now:
                due.update({queue: len(members) for queue, members in queues.items()})
        return sum(math.ceil(count / BATCH_ENTRIES) for count in due.values())

    def take_due(self, now: float) -> list[Delivery]:
        """Take out one batch: what is due of one queue, filled up with what falls due there next."""
        first = self.next_due()
        if first is None or first > now:
            return []
        batch = list(islice(self._of(next(iter(self._slots[first]))), BATCH_ENTRIES))
        for delivery in batch:
            self.remove(delivery)
        return batch

    def _of(self, queue: Queue) -> Iterator[Delivery]:
        """The deliveries of a queue, in the order in which they fall due."""
        for slot in sorted(self._slots):
            yield from self._slots[slot].get(queue, ())

    def _put(self, delivery: Delivery, slot: float) -> None:
        self.remove(delivery)
        delivery.bucket = slot
        self._slots.setdefault(slot, {}).setdefault(delivery.queue, {})[delivery] = None
