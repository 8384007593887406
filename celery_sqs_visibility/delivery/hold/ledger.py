"""Ledger of the deliveries that this process holds: one writer each, and the time of their extensions."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.lease_table import INACTIVE, LeaseTable
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settlements import DeadLetter, Delete, Settlement
from celery_sqs_visibility.policy.options import OptionsOfQueue, QueueOptions
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

#: An instant that has passed.
AT_ONCE: Final = 0.0

#: The time from one extension to the next has this many buckets.
BUCKETS: Final = 4

#: A failed extension is tried again at multiples of this, so that retries share requests.
RETRY_BUCKET_SECONDS: Final = 0.25

#: A failed extension is tried again after this part of the time that is left,
RETRY_FRACTION: Final = 4

#: but not sooner than this.
RETRY_FLOOR_SECONDS: Final = 0.25


class ExtensionOutcome(NamedTuple):
    """Result of an extension that has returned, for its delivery.

    Attributes:
        held: whether it is still held, neither settled nor superseded meanwhile.
        waiting: the settlement that waited for the extension, to be carried out now.
    """

    held: bool
    waiting: Settlement | None


class Ledger:
    """Deliveries that this process holds. Safe to call from any thread; it does no I/O.

    Settling a delivery takes it out, so that no extension of it begins any more. An extension in flight may
    reach SQS late, and overwrite a settlement that keeps the message. So such a settlement waits in the
    delivery until the extension has returned. A deletion does not wait: no extension brings a message back.

    A delivery of which copies are sent is claimed: it stays in, and is extended, until its one claimant
    settles it.

    Args:
        options_of: of a queue, whose deliveries are extended by `visibility_timeout`, `heartbeat_interval`
            before their deadline; with an interval of 0 only if their task asks for it.
        leases: what running tasks see of their deliveries, if they run in a worker.
        lock: shared with the ledgers whose deliveries may take the place of this one's. Reentrant, since
            Celery's cold shutdown settles in a signal handler, on a thread that may be settling just now.
    """

    def __init__(
        self,
        options_of: OptionsOfQueue,
        leases: LeaseTable | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        self._options_of = options_of
        self._leases = leases
        # Guards everything below, and the mutable fields of the deliveries.
        self._lock = lock or threading.RLock()
        self._changed = threading.Condition(self._lock)  # an extension returned, or nothing is held any more
        self._held: dict[str, Delivery] = {}
        # Superseded ones, and those settled unrun, as long as anybody refers to them.
        self._gone: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        self._waiting = 0  # settlements that wait for an extension in flight
        self._extensions = ExtensionSchedule()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, handle: str) -> Delivery | None:
        """The delivery of that receipt handle, as long as anybody refers to it; none that ran and is settled.

        It may be settled before it runs, and then cannot be started; or superseded, and then the newer one is
        settled in its place. A caller that hands a message over by its handle (kombu's delivery tag) keeps
        the delivery until the other side has looked it up.
        """
        return self._held.get(handle) or self._gone.get(handle)

    def add(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """A poll brought them: they are of one queue, with one deadline; those that are held from now on.

        A receipt handle is held once: an answer may list a message twice, and a poll that is repeated may
        bring what the late answer to the first one brings, too.
        """
        added = []
        with self._lock:
            for delivery in deliveries:
                if delivery.handle not in self._held:
                    delivery.held = True
                    self._held[delivery.handle] = delivery
                    added.append(delivery)
            if added:
                self._schedule(added)
        return added

    def claim(self, delivery: Delivery) -> bool:
        """Its copies are to be sent: it stays, and only their sender settles it; whether it was held."""
        with self._lock:
            if not delivery.held or delivery.claimed:
                return False
            delivery.claimed = True
            self._end_lease(delivery)
            return True

    def disclaim(self, delivery: Delivery) -> bool:
        """It is to run after all, by another request of Celery's; whether it was held."""
        with self._lock:
            if delivery.held:
                delivery.claimed, delivery.carrier = False, None
            return delivery.held

    def settle(
        self,
        delivery: Delivery,
        settlement: Settlement,
        finish: Callable[[Delivery], None] | None = None,
        *,
        claimed: bool = False,
    ) -> tuple[bool, bool]:
        """Take it out, to settle it.

        Args:
            delivery: what is settled.
            settlement: how.
            finish: called before the ledger lets go of it, if this settles it, under the lock: another thread
                may neither settle it otherwise once it counts as finished, nor run it again before that.
            claimed: whether the caller has claimed it; no other caller can settle a claimed delivery.

        Returns:
            Whether it was held, and whether the settlement may be carried out now. If it was held and may
            not, the extension in flight hands the settlement back: see `postponed`.
        """
        with self._lock:
            if delivery.claimed is not claimed or not delivery.held:
                return False, False
            if finish is not None:
                finish(delivery)
            if not self._remove(delivery):
                return False, False
            self._end_lease(delivery)
            return True, not (delivery.extending and self.postponed(delivery, settlement))

    def postponed(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Whether this settlement, of a delivery no longer held, waits from now on for an extension."""
        with self._lock:
            if not delivery.extending or isinstance(settlement, (Delete, DeadLetter)):
                return False
            delivery.waiting = settlement
            self._waiting += 1
            return True

    def start(self, delivery: Delivery, now: float) -> bool:
        """A pool begins to run it at that monotonic instant; `False` if it is not held any more."""
        with self._lock:
            if not delivery.held or delivery.claimed:
                return False
            delivery.began = now
            if delivery.lease is None:
                self._give_lease(delivery)
            return True

    def dispatch(self, delivery: Delivery) -> bool:
        """It goes to a pool that cannot be kept from running it; `False` if it is not held any more."""
        with self._lock:
            delivery.dispatched = may_run = delivery.held and not delivery.claimed
            if may_run and delivery.lease is None:
                self._give_lease(delivery)
            return may_run

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:
        """The newer delivery takes its place, and its run and lease; `False` if it was settled.

        The newer one is in its ledger already, so that a settlement of the old one finds it there. The result
        of an extension of the old one in flight concerns neither the task nor anybody else any more.
        """
        with self._lock:
            if delivery.claimed and not superseded_by.current.held:
                return False  # the newer one was given back just now; the copies of this one go on
            if delivery.held:
                self._gone[delivery.handle] = delivery
            if not self._remove(delivery):
                return False
            newest = superseded_by.current  # it may be superseded itself, if two came back at once
            newest.began, newest.dispatched = delivery.began, delivery.dispatched
            newest.acknowledged_early = delivery.acknowledged_early
            newest.claimed, newest.in_hand = delivery.claimed, delivery.in_hand
            newest.carrier = delivery.carrier
            newest.on_lost, delivery.on_lost = delivery.on_lost, None
            newest.requested_deadline, delivery.requested_deadline = delivery.requested_deadline, 0.0
            newest.inactivity, delivery.inactivity = delivery.inactivity, None
            newest.lease, delivery.lease = delivery.lease, None
            if newest.lease is not None:
                newest.lease.renew(newest.deadline, newest.horizon)
                newest.lease.lost = newest.lost  # if the machine slept just now
            delivery.superseded_by = superseded_by
            return True

    def request_extension(self, delivery: Delivery, until: float, now: float) -> bool:
        """Its task wants it hidden until that monotonic instant: the heartbeat extends it next.

        Returns:
            Whether it is held. A lost delivery is not extended, which its lease tells.
        """
        with self._lock:
            if not delivery.held:
                return False
            if not delivery.lost:
                delivery.requested_deadline = until
                if not delivery.extending:
                    apart = seconds_apart(self._options_of(delivery.queue.name))
                    self._extensions.add([delivery], now, apart)
            return True

    def unstarted(self) -> list[Delivery]:
        """Held deliveries that do not run, in the order of arrival. A dispatched one may run by now.

        A claimed one neither runs nor is to be given back.
        """
        with self._lock:
            return [d for d in self._held.values() if not (d.started or d.dispatched or d.claimed)]

    def all(self) -> list[Delivery]:
        """Everything held, in the order of arrival."""
        if not self._held:
            return []
        with self._lock:
            return list(self._held.values())

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait until nothing is held, for `timeout` seconds at the most; whether nothing is."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._held, timeout)

    def wait_for_extensions(self, timeout: float) -> bool:
        """Wait until no settlement waits for an extension, for `timeout` seconds; whether none does."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def next_extension(self) -> float | None:
        """The monotonic instant at which `take_due` has something to do."""
        if not self._held:
            return None
        with self._lock:
            return self._extensions.next_due()

    def batches_due(self, now: float) -> int:
        """How many times `take_due` has something to do."""
        with self._lock:
            return self._extensions.batches_due(now)

    def tell_inactive(self, delivery: Delivery) -> bool:
        """Its run has shown no life: the run hears of it; whether it is held, and has a lease."""
        with self._lock:
            if told := delivery.held and delivery.lease is not None:
                delivery.lease.last_sign = INACTIVE
            return told

    def take_due(self, now: float) -> list[tuple[Delivery, int]]:
        """The deliveries that one request extends, and by how many seconds; marked as being extended.

        All are of one queue. With 0 seconds: those that lapsed, or need no extension.
        """
        with self._lock:
            due = self._extensions.take_due(now)
            if not due:
                return []
            options = self._options_of(due[0].queue.name)
            for delivery in due:
                delivery.extending = True
            return [(delivery, extension_seconds(delivery, options, now)) for delivery in due]

    def extension(self, delivery: Delivery, now: float) -> int:
        """Seconds by which it is to be extended now; 0 if it is not to be."""
        return extension_seconds(delivery, self._options_of(delivery.queue.name), now)

    def lateness(self, delivery: Delivery, now: float) -> float:
        """Seconds since the instant by which it should have been extended; 0 before."""
        interval = self._options_of(delivery.queue.name).heartbeat_interval
        return max(0.0, now - (delivery.deadline - interval))

    def extended(self, delivery: Delivery, deadline: float) -> ExtensionOutcome:
        """SQS extended it until that instant."""
        with self._lock:
            delivery.deadline = deadline
            if delivery.lease is not None:
                delivery.lease.deadline = deadline
            if not delivery.requested_deadline:
                return self._extension_returned(delivery, None)
            if delivery.requested_deadline <= deadline or delivery.at_horizon:
                self._answer(delivery)
            return self._extension_returned(delivery, AT_ONCE if delivery.requested_deadline else None)

    def not_extended(self, delivery: Delivery, now: float) -> ExtensionOutcome:
        """The extension failed; it is tried again until the deadline."""
        with self._lock:
            return self._extension_returned(delivery, next_try(delivery, now))

    def not_extensible(self, delivery: Delivery, now: float) -> ExtensionOutcome:
        """It needs no extension now, or its horizon is reached.

        A delivery that its task has hidden for long comes along in a batch with space; it is extended again
        before its deadline, as any other. One that nothing extends is left until it is lost, at the deadline.
        """
        with self._lock:
            if self.extension(delivery, now) > 0:  # its task has asked just now
                return self._extension_returned(delivery, AT_ONCE)
            self._answer(delivery)
            options = self._options_of(delivery.queue.name)
            again_at = None if is_extended_again(delivery, options, now) else delivery.deadline
            return self._extension_returned(delivery, again_at)

    def refused(self, delivery: Delivery) -> ExtensionOutcome:
        """SQS refused the handle, or its deadline has passed: it is lost."""
        with self._lock:
            delivery.lost = True
            if delivery.lease is not None:
                delivery.lease.lost = True
            self._answer(delivery)
            return self._extension_returned(delivery, None)

    def tell_lost(self, delivery: Delivery) -> bool:
        """Its lease reads as lost from now on, though its message is extended; whether it is held."""
        with self._lock:
            if not delivery.held:
                return False
            if delivery.lease is not None:
                delivery.lease.lost = True
            return True

    def _extension_returned(self, delivery: Delivery, again_at: float | None) -> ExtensionOutcome:
        delivery.extending = False
        waiting, delivery.waiting = delivery.waiting, None
        held = delivery.held
        if waiting is not None:
            self._waiting -= 1
            self._changed.notify_all()
        elif held and not delivery.lost:
            self._schedule([delivery], again_at)
        return ExtensionOutcome(held, waiting)

    def _remove(self, delivery: Delivery) -> bool:
        """Hold it no more; whether it was held."""
        if not delivery.held:
            return False
        if delivery.began is None:  # its message may be looked up yet
            self._gone[delivery.handle] = delivery
        if self._held.pop(delivery.handle, None) is None:  # a signal handler was first
            return False
        delivery.held = False
        if not self._held:
            self._changed.notify_all()
        self._extensions.remove(delivery)
        return True

    def _give_lease(self, delivery: Delivery) -> None:
        if self._leases is not None:
            lease = self._leases.take(delivery.deadline, delivery.extend, delivery.horizon)
            if lease is not None and delivery.lost:  # just now, or it would not begin
                lease.lost = True
            delivery.lease = lease

    @staticmethod
    def _end_lease(delivery: Delivery) -> None:
        """An extension in flight may not write to the row, which is another lease's from now on."""
        if delivery.lease is not None:
            delivery.lease.end()
            delivery.lease = None

    @staticmethod
    def _answer(delivery: Delivery) -> None:
        """The deadline that its task requested is reached, or cannot be."""
        if delivery.requested_deadline and delivery.lease is not None:
            delivery.lease.answer(delivery.requested_deadline)
        delivery.requested_deadline = 0.0

    def _schedule(self, deliveries: Sequence[Delivery], not_before: float | None = None) -> None:
        """Extend them, of one queue and with one deadline, at their time or, if that is given, later."""
        deadline, options = deliveries[0].deadline, self._options_of(deliveries[0].queue.name)
        if not_before is None and (interval := options.heartbeat_interval):
            self._extensions.add(deliveries, deadline - interval, seconds_apart(options))
        else:
            self._extensions.add_not_before(deliveries, deadline if not_before is None else not_before)


class Bucket(dict[Delivery, None]):
    """Deliveries of a queue that are to be extended at one instant."""

    def __init__(self, instant: float, queue: Queue) -> None:
        self.instant = instant
        self.queue = queue


class ExtensionSchedule:
    """Deliveries in buckets of time, so that extensions share requests. Not thread-safe: the ledger locks.

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
        bucket: Bucket | None = delivery.bucket
        delivery.bucket = None
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


def extension_seconds(delivery: Delivery, options: QueueOptions, now: float) -> int:
    """Seconds to ask for, clamped to the horizon; 0 if it lapsed, or is hidden for longer already."""
    if delivery.at_horizon or delivery.deadline <= now:
        return 0
    seconds = options.visibility_timeout if options.heartbeat_interval else 0
    if delivery.requested_deadline:
        seconds = max(seconds, math.ceil(delivery.requested_deadline - now))
    seconds = min(seconds, int(delivery.horizon - HORIZON_MARGIN_SECONDS - now))
    return seconds if now + seconds > delivery.deadline else 0


def is_extended_again(delivery: Delivery, options: QueueOptions, now: float) -> bool:
    """Whether the heartbeat extends it before its deadline, though it does not now."""
    return bool(options.heartbeat_interval) and delivery.deadline > now and not delivery.at_horizon


def next_try(delivery: Delivery, now: float) -> float:
    """The monotonic instant at which an extension that failed just now is tried again."""
    pause = max((delivery.deadline - now) / RETRY_FRACTION, RETRY_FLOOR_SECONDS)
    return min(now + pause, delivery.deadline)


def seconds_apart(options: QueueOptions) -> float:
    """Seconds before or after which a queue's deliveries are extended again, whichever is less.

    Extensions are an interval before the deadline, so the rest of the visibility timeout apart.
    """
    interval, timeout = options.heartbeat_interval, options.visibility_timeout
    return min(interval, timeout - interval) or timeout
