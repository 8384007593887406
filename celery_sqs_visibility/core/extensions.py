"""When held messages are extended, and by how much: in buckets of time, so that extensions share requests."""

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

#: The time from one extension to the next has this many buckets.
BUCKETS: Final = 4

#: A failed extension is tried again at multiples of this, so that retries share requests.
RETRY_BUCKET_SECONDS: Final = 0.25

#: A failed extension is tried again after this part of the time that is left,
RETRY_FRACTION: Final = 4

#: but not sooner than this.
RETRY_FLOOR_SECONDS: Final = 0.25


class Bucket(dict[Delivery, None]):
    """Deliveries of one queue that are due to be extended at the same instant."""

    def __init__(self, instant: float, queue: Queue) -> None:
        self.instant = instant
        self.queue = queue


class ExtensionSchedule:
    """Deliveries in buckets of time, so that extensions share requests. Not thread-safe.

    A bucket falls due as a whole, at its beginning. If its last batch has room, deliveries of later buckets
    fill it up: extending them costs nothing, and from then on they share a bucket. A delivery stays here
    until the batch that extends it is taken.
    """

    def __init__(self) -> None:
        # By the instant at which they fall due, and by queue; none of them is empty.
        self._buckets: dict[float, dict[Queue, Bucket]] = {}

    def add(self, deliveries: Sequence[Delivery], at: float, interval: float) -> None:
        """Extend deliveries of one queue at that monotonic instant, or up to a bucket earlier.

        `interval` is `seconds_apart` of the queue. A bucket must be shorter, or a delivery that was just
        extended would be due at once.
        """
        seconds = interval / BUCKETS
        self._put(deliveries, math.floor(at / seconds) * seconds)

    def add_not_before(self, deliveries: Sequence[Delivery], at: float) -> None:
        """Extend deliveries of one queue at that monotonic instant, or a moment later."""
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
        """The instant at which the earliest bucket falls due; `None` if nothing is to be extended."""
        return min(self._buckets, default=None)

    def batches_due(self, now: float) -> int:
        """How many requests extend everything that is due."""
        due: Counter[Queue] = Counter()
        for bucket, queues in self._buckets.items():
            if bucket <= now:
                due.update({queue: len(members) for queue, members in queues.items()})
        return sum(math.ceil(count / BATCH_ENTRIES) for count in due.values())

    def take_due(self, now: float) -> list[Delivery]:
        """Take out one batch of one queue: what is due, filled up with what falls due next."""
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
        for delivery in deliveries:
            if delivery.bucket is not None:
                self.remove(delivery)
        queue = deliveries[0].queue
        bucket = self._buckets.get(instant, {}).get(queue) or Bucket(instant, queue)
        for delivery in deliveries:
            bucket[delivery] = None
            delivery.bucket = bucket
        self._buckets.setdefault(instant, {})[queue] = bucket  # last: memory may lack before


def extension_seconds(delivery: Delivery, options: QueueOptions, now: float) -> int:
    """Seconds to ask for, up to the horizon; 0 if the delivery lapsed, or is hidden for longer already."""
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
    """Seconds between two extensions of a queue's deliveries, or before the deadline, whichever is less.

    A delivery is extended one interval before its deadline, so extensions are the rest of the timeout apart.
    """
    interval, timeout = options.heartbeat_interval, options.visibility_timeout
    return min(interval, timeout - interval) or timeout
