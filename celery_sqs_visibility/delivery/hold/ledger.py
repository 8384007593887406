"""What this process holds, and who may write to SQS about it: one writer a delivery."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from celery_sqs_visibility.delivery.hold.extension_schedule import ExtensionSchedule
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Settlement
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN

#: A failed extension is tried again after this part of the time that is left.
RETRY_FRACTION = 4

#: But not more often than this, in seconds.
RETRY_FLOOR = 0.25

#: An instant that has passed.
AT_ONCE = 0.0


class Returned(NamedTuple):
    """What an extension that has returned finds.

    Attributes:
        held: whether the delivery is still held, and neither settled nor replaced meanwhile.
        waiting: the settlement that waited for it, to be carried out now.
    """

    held: bool
    waiting: Settlement | None


class Ledger:
    """The deliveries this process holds. Safe to call from any thread; it does no I/O.

    Settling a delivery takes it out, so that no extension of it begins any more. Where one is in flight, a
    settlement that keeps the message, which that would overwrite if it arrives late at SQS, waits in the
    delivery until the extension has returned. A deletion does not wait: no extension brings a message back.

    Args:
        visibility_timeout: seconds an extension asks for.
        heartbeat_interval: seconds before the deadline at which a delivery is extended; 0 is only if its
            task asks for it.
    """

    def __init__(
        self, visibility_timeout: int, heartbeat_interval: float, leases: LeaseTable | None = None
    ) -> None:
        self._visibility_timeout = visibility_timeout
        self._interval = heartbeat_interval
        self._leases = leases
        # Guards everything below, and the mutable fields of the deliveries. Reentrant, since Celery's cold
        # shutdown settles in a signal handler, on a thread that may be settling just now.
        self._lock = threading.RLock()
        self._resumed = threading.Condition(self._lock)  # an extension returned, or nothing is held any more
        self._held: dict[str, Delivery] = {}
        # What was settled or gave way too, for as long as anybody has it in hand.
        self._known: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        self._waiting = 0  # settlements that wait for an extension in flight
        # Extensions are an interval before the deadline, so the rest of the visibility timeout apart.
        apart = min(heartbeat_interval, visibility_timeout - heartbeat_interval)
        self._extensions = ExtensionSchedule(apart or visibility_timeout)

    def __len__(self) -> int:
        return len(self._held)

    def get(self, handle: str) -> Delivery | None:
        """The delivery of that receipt handle, if anybody has it in hand.

        It may be settled meanwhile, and then cannot be started; or replaced by a newer one, which is then
        settled in its place. So whoever hands a message over by its handle (kombu's delivery tag) holds on to
        the delivery until the other side has looked it up.
        """
        return self._known.get(handle)

    def holds(self, delivery: Delivery) -> bool:
        """Whether it is held, and neither settled nor replaced."""
        return self._held.get(delivery.handle) is delivery

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """They were received."""
        with self._lock:
            for delivery in deliveries:
                self._held[delivery.handle] = self._known[delivery.handle] = delivery
                self._schedule(delivery)

    def settle(self, delivery: Delivery, settlement: Settlement) -> tuple[bool, bool]:
        """Take it out, to settle it.

        Returns:
            Whether it was held, and whether the settlement may be carried out now. If it was held and may
            not, the extension in flight will hand the settlement back: see `postponed`.
        """
        with self._lock:
            if not self._remove(delivery):
                return False, False
            if delivery.lease is not None:
                # An extension in flight may not write to the seat, which is somebody else's by then.
                delivery.lease.end()
                delivery.lease = None
            return True, not self.postponed(delivery, settlement)

    def postponed(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Whether this settlement of what is held no more waits for an extension in flight, from now on."""
        with self._lock:
            if not delivery.extending or isinstance(settlement, (Delete, DeadLetter)):
                return False
            delivery.waiting = settlement
            self._waiting += 1
            return True

    def start(self, delivery: Delivery, now: float) -> bool:
        """A pool begins to run it at that monotonic instant; `False` if it is not held any more."""
        with self._lock:
            if not self.holds(delivery):
                return False
            delivery.began = now
            self._give_lease(delivery)
            return True

    def dispatch(self, delivery: Delivery) -> bool:
        """It goes to a pool that cannot be kept from running it; `False` if it is not held any more."""
        with self._lock:
            delivery.dispatched = self.holds(delivery)
            if delivery.dispatched:
                self._give_lease(delivery)
            return delivery.dispatched

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:
        """Its successor takes its place, with all that it was to others; `False` if it was settled.

        The successor is in its ledger already, so that what settles the old one finds it there. An extension
        of the old one that is in flight has nothing to tell any more, neither to the task nor to others.
        """
        with self._lock:
            if not self._remove(delivery):
                return False
            newest = superseded_by.current  # it may have given way itself, if two came back at once
            newest.began, newest.dispatched = delivery.began, delivery.dispatched
            newest.acknowledged_early = delivery.acknowledged_early
            newest.on_lost, delivery.on_lost = delivery.on_lost, None
            newest.requested_deadline, delivery.requested_deadline = delivery.requested_deadline, 0.0
            newest.lease, delivery.lease = delivery.lease, None
            if newest.lease is not None:
                newest.lease.deadline, newest.lease.lost = newest.deadline, False
            delivery.superseded_by = superseded_by
            return True

    def request_extension(self, delivery: Delivery, until: float, now: float) -> bool:
        """Its task wants it hidden until that monotonic instant: the next beat sees to it.

        Returns:
            Whether it is held. What is lost is not extended, which its lease tells.
        """
        with self._lock:
            if not self.holds(delivery):
                return False
            if not delivery.lost:
                delivery.requested_deadline = until
                if not delivery.extending:
                    self._extensions.add(delivery, now)
            return True

    def unstarted(self) -> list[Delivery]:
        """What is held and not run, in the order of arrival; what was dispatched may be, by now."""
        with self._lock:
            return [d for d in self._held.values() if not d.started and not d.dispatched]

    def all(self) -> list[Delivery]:
        """Everything that is held, in the order of arrival."""
        with self._lock:
            return list(self._held.values())

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait until nothing is held; whether that came true in time."""
        with self._lock:
            return self._resumed.wait_for(lambda: not self._held, timeout)

    def wait_for_extensions(self, timeout: float) -> bool:
        """Wait until no settlement waits for an extension in flight; whether that came true in time."""
        with self._lock:
            return self._resumed.wait_for(lambda: not self._waiting, timeout)

    def next_extension(self) -> float | None:
        """The monotonic instant at which `take_due` has something to do."""
        with self._lock:
            return self._extensions.next_due()

    def batches_due(self, now: float) -> int:
        """How many times `take_due` has something to do."""
        with self._lock:
            return self._extensions.batches_due(now)

    def take_due(self, now: float) -> list[tuple[Delivery, int]]:
        """What one request is to extend, and by how many seconds; marked as being extended.

        All are of one queue. With 0 seconds: what lapsed, or need not be extended.
        """
        with self._lock:
            due = self._extensions.take_due(now)
            for delivery in due:
                delivery.extending = True
            return [(delivery, self.extension(delivery, now)) for delivery in due]

    def extension(self, delivery: Delivery, now: float) -> int:
        """Seconds to ask for, clamped to the horizon; 0 if it lapsed, or has a longer lease than that."""
        if delivery.at_horizon or delivery.deadline <= now:
            return 0
        seconds = max(
            self._visibility_timeout if self._interval else 0, math.ceil(delivery.requested_deadline - now)
        )
        seconds = min(seconds, int(delivery.horizon - HORIZON_MARGIN - now))
        return seconds if now + seconds > delivery.deadline else 0

    def extended(self, delivery: Delivery, deadline: float) -> Returned:
        """SQS extended it until that instant."""
        with self._lock:
            delivery.deadline = deadline
            if delivery.lease is not None:
                delivery.lease.deadline = deadline
            if delivery.requested_deadline <= deadline or delivery.at_horizon:
                self._answered(delivery)
            return self._extension_returned(delivery, AT_ONCE if delivery.requested_deadline else None)

    def not_extended(self, delivery: Delivery, now: float) -> Returned:
        """The extension failed; it is tried again until the deadline."""
        with self._lock:
            pause = max((delivery.deadline - now) / RETRY_FRACTION, RETRY_FLOOR)
            return self._extension_returned(delivery, min(now + pause, delivery.deadline))

    def not_extensible(self, delivery: Delivery, now: float) -> Returned:
        """Its horizon is reached, or nobody wants more: nothing is done until it is lost, at the deadline."""
        with self._lock:
            if self.extension(delivery, now) > 0:  # its task has asked just now
                return self._extension_returned(delivery, AT_ONCE)
            self._answered(delivery)
            return self._extension_returned(delivery, delivery.deadline)

    def refused(self, delivery: Delivery) -> Returned:
        """SQS refused the handle, or its deadline has passed: it is lost."""
        with self._lock:
            self._lose(delivery)
            return self._extension_returned(delivery, None)

    def _extension_returned(self, delivery: Delivery, again_at: float | None) -> Returned:
        delivery.extending = False
        waiting, delivery.waiting = delivery.waiting, None
        held = self.holds(delivery)
        if waiting is not None:
            self._waiting -= 1
            self._resumed.notify_all()
        elif held and not delivery.lost:
            self._schedule(delivery, again_at)
        return Returned(held, waiting)

    def _remove(self, delivery: Delivery) -> bool:
        if not self.holds(delivery):
            return False
        del self._held[delivery.handle]
        if not self._held:
            self._resumed.notify_all()
        self._extensions.remove(delivery)
        return True

    def _give_lease(self, delivery: Delivery) -> None:
        if self._leases is not None and delivery.lease is None:
            delivery.lease = self._leases.take(delivery.deadline, delivery.extend)
            if delivery.lease is not None and delivery.lost:  # just now, or it would not begin
                delivery.lease.lost = True

    def _lose(self, delivery: Delivery) -> None:
        delivery.lost = True
        if delivery.lease is not None:
            delivery.lease.lost = True
        self._answered(delivery)

    @staticmethod
    def _answered(delivery: Delivery) -> None:
        """What its task requested_deadline is done, or cannot be done."""
        if delivery.requested_deadline and delivery.lease is not None:
            delivery.lease.answer(delivery.requested_deadline)
        delivery.requested_deadline = 0.0

    def _schedule(self, delivery: Delivery, not_before: float | None = None) -> None:
        if not_before is None and self._interval:
            self._extensions.add(delivery, delivery.deadline - self._interval)
        else:
            self._extensions.add_not_before(delivery, delivery.deadline if not_before is None else not_before)
