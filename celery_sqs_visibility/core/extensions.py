"""When held messages are extended, and by how much: in buckets of time, so that they share requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.policy.options import QueueOptions
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue

#: Buckets between two extensions of a delivery.
BUCKETS: Final = 4

#: A failed extension is tried again at multiples of this, so that retries share requests.
RETRY_BUCKET_SECONDS: Final = 0.25

#: It is tried again after the remaining time divided by this,
RETRY_FRACTION: Final = 4

#: but not sooner than this.
RETRY_FLOOR_SECONDS: Final = 0.25


class Bucket(dict[Delivery, None]):
    """Deliveries of one queue that are due to be extended at the same instant."""

    def __init__(self, instant: float, queue: Queue) -> None:
        self.instant = instant
        self.queue = queue


class ExtensionSchedule:
    """Deliveries in buckets of time, so that their extensions share requests. Not thread-safe.

    A whole bucket falls due at its beginning. If its last batch has room, deliveries of later buckets fill it
    up, at no cost, and share a bucket from then on. A delivery stays here until the batch that extends it is
    taken.
    """

    def __init__(self) -> None:
        # By the instant at which they fall due, and by queue; none of them is empty.
        self._buckets: dict[float, dict[Queue, Bucket]] = {}

    def add(self, deliveries: Sequence[Delivery], at: float, interval: float) -> None:
        """Schedule deliveries of one queue for that monotonic instant, or up to one bucket earlier.

        `interval` is `seconds_apart` of the queue. A bucket must be shorter, or a delivery that was just
        extended would be due at once.
        """
        seconds = interval / BUCKETS
        self._put(deliveries, math.floor(at / seconds) * seconds)

    def add_not_before(self, deliveries: Sequence[Delivery], at: float) -> None:
        """Schedule deliveries of one queue for that monotonic instant, or a moment later."""
        self._put(deliveries, math.ceil(at / RETRY_BUCKET_SECONDS) * RETRY_BUCKET_SECONDS)

    def remove(self, delivery: Delivery) -> None:
        """Cancel the extension of a delivery. Idempotent."""
        bucket: Bucket | None = delivery.bucket
        delivery.bucket = None
        if bucket is None:
            return
        del bucket[delivery]
        if not bucket and (queues := self._buckets.get(bucket.instant)) is not None:
            queues.pop(bucket.queue, None)
            if not queues:
                del self._buckets[bucket.instant]

    def next_due(self) -> float | None:
        """The instant at which the earliest bucket falls due; `None` if nothing is scheduled."""
        return min(self._buckets, default=None)

    def batches_due(self, now: float) -> int:
        """How many requests extend everything that is due."""
        due: Counter[Queue] = Counter()
        for bucket, queues in self._buckets.items():
            if bucket <= now:
                due.update({queue: len(members) for queue, members in queues.items()})
        return sum(math.ceil(count / BATCH_ENTRIES) for count in due.values())

    def take_due(self, now: float) -> list[Delivery]:
        """Take out one batch of one queue: deliveries that are due, filled up with the next ones."""
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
        bucket = self._buckets.get(instant, {}).get(queue) or Bucket(instant, queue)
        for delivery in deliveries:
            if delivery.bucket is not None:
                self.remove(delivery)
            bucket[delivery] = None
            delivery.bucket = bucket
        self._buckets.setdefault(instant, {})[queue] = bucket  # last: memory may lack before


def extension_seconds(delivery: Delivery, options: QueueOptions, now: float) -> int:
    """Seconds to ask for, up to the horizon; 0 if the delivery lapsed, or is already hidden for longer."""
    if delivery.at_horizon or delivery.deadline <= now:
        return 0
    seconds = options.visibility_timeout if options.heartbeat_interval else 0
    if delivery.requested_deadline:
        seconds = max(seconds, math.ceil(delivery.requested_deadline - now))
    seconds = min(seconds, int(delivery.horizon - HORIZON_MARGIN_SECONDS - now))
    return seconds if now + seconds > delivery.deadline else 0


def next_try(delivery: Delivery, now: float) -> float:
    """The monotonic instant at which an extension that failed just now is tried again."""
    pause = max((delivery.deadline - now) / RETRY_FRACTION, RETRY_FLOOR_SECONDS)
    return min(now + pause, delivery.deadline)


def seconds_apart(options: QueueOptions) -> float:
    """Seconds between two extensions, or from the last extension to the deadline if that is less.

    A delivery is extended one interval before its deadline, so extensions are `timeout - interval` apart.
    """
    interval, timeout = options.heartbeat_interval, options.visibility_timeout
    return min(interval, timeout - interval) or timeout
