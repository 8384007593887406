"""Which deliveries are to be extended when, so that they share requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Bucket, Delivery
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: The time from one extension to the next has this many buckets.
BUCKETS: Final = 4

#: A failed extension is tried again at multiples of this, so that retries share requests.
RETRY_BUCKET_SECONDS: Final = 0.25


class ExtensionSchedule:
    """Deliveries in buckets of time. Not thread-safe: the ledger locks.

    A bucket falls due as a whole, at its beginning. Where its last batch has room, deliveries of later
    buckets fill it up: their extension costs nothing, and from then on they share a bucket. A delivery stays
    here until the batch that extends it is taken.
    """

    def __init__(self) -> None:
        # By the instant at which they fall due, and by queue; none of them is empty.
        self._buckets: dict[float, dict[Queue, Bucket]] = {}

    def add(self, deliveries: Sequence[Delivery], at: float, interval: float) -> None:
        """Extend them, of one queue, at that monotonic instant, or up to a bucket earlier.

        `interval` is the seconds before or after which the queue's deliveries are extended again, whichever
        is less: a bucket must be shorter, or a delivery that was just extended would be due at once.
        """
        seconds = interval / BUCKETS
        self._put(deliveries, math.floor(at / seconds) * seconds)

    def add_not_before(self, deliveries: Sequence[Delivery], at: float) -> None:
        """Extend them, of one queue, at that monotonic instant, or a moment later."""
        self._put(deliveries, math.ceil(at / RETRY_BUCKET_SECONDS) * RETRY_BUCKET_SECONDS)

    def remove(self, delivery: Delivery) -> None:
        """Do not extend it; harmless if it is not here."""
        bucket, delivery.bucket = delivery.bucket, None
        if bucket is None:
            return
        # A signal handler may remove others between any two of these lines.
        bucket.pop(delivery, None)
        if not bucket:
            queues = self._buckets.get(bucket.instant, {})
            queues.pop(bucket.queue, None)
            if not queues:
                self._buckets.pop(bucket.instant, None)

    def next_due(self) -> float | None:
        """The instant at which the earliest bucket falls due."""
        return min(self._buckets, default=None)

    def batches_due(self, now: float) -> int:
        """How many requests it takes to extend everything that is due."""
        due: Counter[Queue] = Counter()
        for bucket, queues in self._buckets.items():
            if bucket <= now:
                due.update({queue: len(members) for queue, members in queues.items()})
        return sum(math.ceil(count / BATCH_ENTRIES) for count in due.values())

    def take_due(self, now: float) -> list[Delivery]:
        """Take out one batch of one queue: everything due, filled up with what falls due next."""
        first = self.next_due()
        if first is None or first > now:
            return []
        batch = list(islice(self._of(next(iter(self._buckets[first]))), BATCH_ENTRIES))
        for delivery in batch:
            self.remove(delivery)
        return batch

    def _of(self, queue: Queue) -> Iterator[Delivery]:
        """The deliveries of a queue, in the order in which they fall due."""
        for bucket in sorted(self._buckets):
            yield from self._buckets[bucket].get(queue, ())

    def _put(self, deliveries: Sequence[Delivery], instant: float) -> None:
        queue = deliveries[0].queue
        queues = self._buckets.get(instant) or {}
        bucket = queues.get(queue) or Bucket(instant, queue)
        for delivery in deliveries:
            if delivery.bucket is not None:
                self.remove(delivery)
            bucket[delivery] = None
            delivery.bucket = bucket
        # Last: a removal, of a signal handler too, may have dropped them as empty.
        queues[queue] = bucket
        self._buckets[instant] = queues
