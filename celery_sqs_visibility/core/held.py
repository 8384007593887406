"""Messages that this process holds or has held: who may settle each, when it is extended, what comes back."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from celery_sqs_visibility.core.batches import PendingSettlement, SettlementBatches
from celery_sqs_visibility.core.delivery import Consumer, Delivery, Leases, State
from celery_sqs_visibility.core.endings import Ending, return_of
from celery_sqs_visibility.core.extensions import (
    ExtensionSchedule,
    extension_seconds,
    next_try,
    seconds_apart,
)
from celery_sqs_visibility.core.recent import RecentKeys
from celery_sqs_visibility.core.settlements import Delete, Direct, Hide, Lapse
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.events import Lost
from celery_sqs_visibility.policy.options import OptionsOfQueue
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: An instant that has passed.
AT_ONCE: Final = 0.0

#: A loop that has not come round for so long stands still for good, and begins nothing that waits for it.
STANDS_STILL_SECONDS: Final = 60.0

#: A loop that stood still is looked at again after this time.
LOOK_SECONDS: Final = 1.0

#: A finished message is remembered for this long after it can come back.
MARGIN_SECONDS: Final = 60

DEADLINE_PASSED: Final = "its visibility timeout ran out before it could be extended"
ANSWERED_LATE: Final = "its extension was answered after its visibility timeout, and may be worth nothing"
NOBODY_BEGINS_IT: Final = "Celery's main thread stands still, so it was not extended any longer"
HORIZON_REACHED: Final = "it was held for the 12 hours that SQS allows"


class Arrival(enum.Enum):
    """What a receipt means to this process."""

    NEW = "of a message that is neither held nor finished here"
    HELD = "of a message that is held here: it takes the place of the older receipt"
    REPEATED = "held here: an answer listed it twice, or came twice"
    OUTDATED = "of a message that is held here under a newer one, and lapsed before it arrived"
    FINISHED = "of a message that was finished here"


class Past(enum.Enum):
    """Ends of messages that this process no longer holds. The value is how many of each to remember.

    Memory of finished messages keeps them from running twice, so its limit is out of reach: 300,000 are those
    of two minutes at 2,500 a second, and take less than 100 MB. Memory of rejected and kept messages only
    saves log lines.
    """

    FINISHED = 300_000
    UNDELETED = 200_000
    GIVEN_UP = 100_000
    REJECTED = 10_000
    KEPT = 20_000


class Extension(NamedTuple):
    """An entry of a request that extends messages; 0 seconds if the message lapsed, or needs no extension."""

    delivery: Delivery
    handle: str
    seconds: int


class Answered(NamedTuple):
    """How an extension ended.

    Attributes:
        delivery: the delivery.
        held: whether it is still held under the receipt that was extended.
        waiting: the settlement that waited for the extension, and is to be carried out now.
        extended: whether SQS extended it.
        lost: the reason, if it is lost from now on.
    """

    delivery: Delivery
    held: bool
    waiting: Direct | None
    extended: bool = False
    lost: str | None = None


class Held:
    """Deliveries that this process holds, and what it remembers of others. Not thread-safe: the holder locks.

    A settled delivery is taken out, so no further extension of it begins. But an extension in flight may
    reach SQS late, and overwrite a settlement that keeps the message. So such a settlement waits in the
    delivery until the extension has returned. A deletion does not wait: an extension never brings a deleted
    message back.

    A message comes back to its holder if its visibility timeout ran out, or because standard queues deliver
    at least once. Only the newest receipt counts.

    Args:
        options_of: returns the options of a queue. Its deliveries are extended by `visibility_timeout`, at
            `heartbeat_interval` before their deadline; with an interval of 0 only if their task asks for it.
        visibility_timeout: the longest of any queue, in seconds; finished messages are remembered for longer.
        window: seconds for which a settlement lingers, so that others can share its request.
    """

    def __init__(self, options_of: OptionsOfQueue, visibility_timeout: float, window: float = 0.0) -> None:
        self._options_of = options_of
        #: What is held, by message.
        self.messages: dict[tuple[str, str], Delivery] = {}
        self._by_tag: dict[str, Delivery] = {}
        # Those that were settled unrun, by tag, as long as anybody refers to them.
        self._gone: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        self.postponed = 0  # settlements that wait for an extension in flight
        self._extensions = ExtensionSchedule()
        #: What SQS is to be told of how deliveries ended.
        self.batches = SettlementBatches(window)
        # A message that is given up and kept comes back within 12 hours, each time; one that could not be
        # deleted once SQS answers again.
        seconds = {
            Past.FINISHED: visibility_timeout + MARGIN_SECONDS,
            Past.UNDELETED: VISIBILITY_HORIZON_SECONDS,
            Past.GIVEN_UP: VISIBILITY_HORIZON_SECONDS,
        }
        self._past: dict[Past, RecentKeys[tuple[str, str]]] = {
            past: RecentKeys(past.value, seconds.get(past, math.inf)) for past in Past
        }
        self._finished, self._undeleted = self._past[Past.FINISHED], self._past[Past.UNDELETED]
        self._kept = self._past[Past.KEPT]
        #: Where the leases of runs are made; `None`: nowhere.
        self.leases: Leases | None = None

    # What is held.

    def __len__(self) -> int:
        return len(self.messages)

    def get(self, tag: str) -> Delivery | None:
        """The delivery of that tag; `None` once it ran and is settled, or nothing refers to it any more.

        A delivery that was settled before it ran is found, but can't be started. A caller that hands over a
        message by its tag keeps the delivery until the other side has looked it up.
        """
        return self._by_tag.get(tag) or self._gone.get(tag)

    def all(self) -> list[Delivery]:
        """All deliveries, in the order of arrival."""
        return list(self.messages.values())

    def of(self, consumer: Consumer) -> list[Delivery]:
        """The deliveries of this consumer, in the order of arrival."""
        return [each for each in self.messages.values() if each.consumer is consumer]

    def holds_of(self, consumer: Consumer) -> bool:
        """Whether a delivery of this consumer is held."""
        return any(each.consumer is consumer for each in self.messages.values())

    # Receipts.

    def receive(self, deliveries: Sequence[Delivery], now: float) -> list[tuple[Arrival, Delivery]]:
        """Take in the deliveries of one poll, which have the same queue and deadline.

        Returns:
            What each receipt means to this process, and the delivery that holds its message. New and finished
            ones are held from now on; a finished one is to be deleted.
        """
        received, added = [], []
        for delivery in deliveries:
            arrival, held = self._arrive(delivery, now)
            received.append((arrival, held))
            if held is delivery:
                added.append(delivery)
        if added:
            self._schedule(added)
        return received

    def _arrive(self, delivery: Delivery, now: float) -> tuple[Arrival, Delivery]:
        key = delivery.message_key
        held = self.messages.get(key)
        if held is None:
            self.messages[key] = self._by_tag[delivery.tag] = delivery
            if (consumer := delivery.consumer) is not None:
                consumer.capacity.count(delivery, 1)
            finished = key in self._finished or key in self._undeleted
            return Arrival.FINISHED if finished else Arrival.NEW, delivery
        delivery.state = State.SETTLED
        if delivery.handle == held.handle:
            return Arrival.REPEATED, held
        if delivery.deadline <= now and delivery.deadline < held.deadline:
            return Arrival.OUTDATED, held  # the process may have been stopped meanwhile
        self._renew(held, delivery)
        return Arrival.HELD, held

    def _renew(self, held: Delivery, newer: Delivery) -> None:
        """Replace the receipt by a newer one. The answer to an extension of the older no longer counts."""
        held.handle, held.deadline, held.horizon = newer.handle, newer.deadline, newer.horizon
        held.lost = False
        facts = newer.facts
        if facts.task is None:  # its payload is in S3, and is not fetched again
            facts = replace(facts, task=held.facts.task, task_id=held.facts.task_id)
        if held.carrier is not None:  # Celery has counted
            facts = replace(facts, attempt=held.facts.attempt, eta=held.facts.eta)
        held.facts = facts
        if held.lease is not None:
            held.lease.renew(held.deadline, held.horizon)
        if not held.extending:
            self._schedule([held], AT_ONCE if held.requested_deadline else None)

    # Runs.

    def start(self, delivery: Delivery, now: float) -> bool:
        """Mark a delivery as running since that monotonic instant. Returns `False` if it may not run."""
        if delivery.state is State.SETTLED or delivery.state is State.COPYING:
            return False
        delivery.state, delivery.began = State.RUNNING, now
        if delivery.lease is None:
            self._give_lease(delivery)
        return True

    def dispatch(self, delivery: Delivery) -> bool:
        """Mark it as handed to a pool that can't be kept from running it; `False` if it may not run."""
        if delivery.state is State.SETTLED or delivery.state is State.COPYING:
            return False
        if delivery.state is State.HELD:
            delivery.state = State.DISPATCHED
        if delivery.lease is None:
            self._give_lease(delivery)
        return True

    def _give_lease(self, delivery: Delivery) -> None:
        if self.leases is None:
            return
        lease = self.leases.take(delivery.deadline, delivery.extend, delivery.horizon)
        if lease is not None and delivery.lost:  # just now, or it would not begin
            lease.lost = True
        delivery.lease = lease

    def tell_lost(self, delivery: Delivery) -> bool:
        """Mark its lease as lost, though its message is still extended. Returns whether it is held."""
        if delivery.lease is not None:
            delivery.lease.lost = True
        return delivery.held

    def tell_inactive(self, delivery: Delivery) -> bool:
        """Tell a run that it has shown no life. Returns whether the delivery has a lease, and so is held."""
        if delivery.lease is None:
            return False
        delivery.lease.tell_inactive()
        return True

    # The end.

    def claim(self, delivery: Delivery, now: float) -> bool:
        """Reserve it for the sender of its copies, who settles it. Returns whether it could be reserved."""
        if delivery.state is State.SETTLED or delivery.state is State.COPYING:
            return False
        delivery.state, delivery.settled_at = State.COPYING, now
        self._end_lease(delivery)
        if delivery.consumer is not None:
            delivery.consumer.capacity.free(delivery, now)
        return True

    def disclaim(self, delivery: Delivery) -> bool:
        """Let a claimed delivery run after all, by another request of Celery. Returns whether it is held."""
        if delivery.state is not State.COPYING:
            return False
        delivery.state, delivery.began, delivery.carrier = State.HELD, None, None
        if delivery.consumer is not None:
            delivery.consumer.capacity.count(delivery, 1)
        return True

    def settle(
        self,
        delivery: Delivery,
        settlement: Direct,
        now: float,
        *,
        receipt: str | None = None,
        copied: bool = False,
    ) -> bool:
        """Settle a delivery: the first settlement counts. Returns whether this was the first.

        Args:
            delivery: the delivery.
            settlement: how it ends. The caller carries it out next, unless it is now `delivery.waiting`: then
                `answered` returns it later.
            now: the monotonic instant.
            receipt: settle it only if this is still its latest receipt handle.
            copied: whether the caller has sent its copies: nobody else may settle it while they are sent.
        """
        if delivery.state is State.SETTLED or (delivery.state is State.COPYING) is not copied:
            return False
        if receipt is not None and receipt != delivery.handle:
            return False
        if not copied:
            delivery.settled_at = now
        if isinstance(settlement, Delete):
            self.finish(delivery, now)
        else:
            self._kept.add(delivery.message_key, now)
        self._remove(delivery)
        if not copied and (consumer := delivery.consumer) is not None:
            consumer.capacity.free(delivery, now)
        self._end_lease(delivery)
        if delivery.extending and not isinstance(settlement, Delete):
            delivery.waiting = settlement
            self.postponed += 1
        return True

    def carry_out(self, delivery: Delivery, settlement: Direct, now: float) -> Ending | None:
        """Put the settlement of a delivery into the batches for SQS, if it takes a request.

        Returns:
            How it ended without a request, or that it is lost; otherwise `None`.
        """
        ending = None
        if delivery.deadline <= now and not delivery.lost:
            delivery.lost = True
            ending = Ending(Lost(delivery.facts, DEADLINE_PASSED))
        if delivery.lost and not isinstance(settlement, Delete):
            return ending  # it is visible by itself; a delete may spare a second run, but not in a FIFO queue
        if isinstance(settlement, Lapse):
            timeout = self._options_of(delivery.queue.name).visibility_timeout
            if delivery.deadline <= now + timeout:
                return return_of(delivery, settlement, now)
            # Its task has extended it for longer than its next attempt should wait.
            settlement = Hide(timeout)
        self.batches.add(PendingSettlement(delivery, settlement, now))
        return ending

    def _remove(self, delivery: Delivery) -> None:
        if self._by_tag.pop(delivery.tag, None) is not None:
            if delivery.began is None:  # it may still be looked up
                self._gone[delivery.tag] = delivery
            del self.messages[delivery.message_key]
            self._extensions.remove(delivery)
        delivery.state = State.SETTLED

    @staticmethod
    def _end_lease(delivery: Delivery) -> None:
        """End the lease: its row may soon be another's, and an extension in flight must not write there."""
        if delivery.lease is not None:
            delivery.lease.end()
            delivery.lease = None

    # What has been held.

    def finish(self, delivery: Delivery, now: float) -> None:
        """Remember a message that is done and to be deleted: if it comes back, it is deleted again.

        If the deletion fails, the message comes back when its visibility lapses. That may be hours away if
        its task asked for it; an extension in flight may delay it by another visibility timeout.
        """
        self._finished.add(delivery.message_key, now, delivery.deadline + MARGIN_SECONDS)

    def remember(self, past: Past, delivery: Delivery, now: float) -> bool:
        """Remember that its message had that end. Returns whether that is new."""
        return self._past[past].add(delivery.message_key, now)

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        """Whether its message had that end before. Any thread."""
        return delivery.message_key in self._past[past]

    # Extensions.

    def request_extension(self, delivery: Delivery, until: float, now: float) -> None:
        """Extend it next, so that it is hidden until that monotonic instant, at its task's request.

        A lost delivery is not extended: the task sees that in its lease.
        """
        if not delivery.held or delivery.lost:
            return
        delivery.requested_deadline = until
        if not delivery.extending:
            apart = seconds_apart(self._options_of(delivery.queue.name))
            self._extensions.add([delivery], now, apart)

    def next_extension(self) -> float | None:
        """The monotonic instant from which `take_due` returns extensions; `None` if there are none."""
        return self._extensions.next_due()

    def batches_due(self, now: float) -> int:
        """How many batches `take_due` would return now."""
        return self._extensions.batches_due(now)

    def take_due(self, now: float) -> list[Extension]:
        """Take what one request extends, all of one queue. From now on they count as being extended."""
        due = self._extensions.take_due(now)
        if not due:
            return []
        options = self._options_of(due[0].queue.name)
        for delivery in due:
            delivery.extending = True
        return [
            Extension(
                each,
                each.handle,
                0 if self._is_forsaken(each, now) else extension_seconds(each, options, now),
            )
            for each in due
        ]

    def lateness(self, delivery: Delivery, now: float) -> float:
        """Seconds since the instant at which it should have been extended; 0 before."""
        interval = self._options_of(delivery.queue.name).heartbeat_interval
        return max(0.0, now - (delivery.deadline - interval))

    def answered(
        self,
        extension: Extension,
        error: SQSError | None,
        since: float,
        now: float,
        outage: SQSError | None = None,
    ) -> Answered:
        """Note how an extension ended: a request made at `since`, or none for 0 seconds.

        `error` is the error of that request. `outage` is why SQS has not extended others lately, if it has
        not.
        """
        delivery, handle, seconds = extension
        delivery.extending = False
        waiting = delivery.waiting
        if waiting is not None:
            delivery.waiting = None
            self.postponed -= 1
        if handle != delivery.handle:  # a newer receipt has arrived meanwhile
            self._plan_next(delivery, AT_ONCE if delivery.requested_deadline else None)
            return Answered(delivery, False, waiting)
        if error is None and seconds and delivery.deadline > now:  # as most
            self._extended(delivery, since + seconds)
            return Answered(delivery, delivery.held, waiting, extended=True)
        lost = None
        if isinstance(error, ReceiptHandleInvalidError):
            lost = str(error)
        elif delivery.deadline <= now:
            lost = ANSWERED_LATE if seconds and error is None else self._why_lapsed(delivery, now, outage)
        elif not seconds:
            self._not_extensible(delivery, now)
        else:  # tried again until the deadline
            self._plan_next(delivery, next_try(delivery, now))
        if lost is not None:
            self._lose(delivery)
        return Answered(delivery, delivery.held, waiting, lost=lost)

    def _extended(self, delivery: Delivery, deadline: float) -> None:
        delivery.deadline = deadline
        if delivery.lease is not None:
            delivery.lease.deadline = deadline
        if delivery.requested_deadline and (delivery.requested_deadline <= deadline or delivery.at_horizon):
            self._answer(delivery)
        self._plan_next(delivery, AT_ONCE if delivery.requested_deadline else None)

    def _not_extensible(self, delivery: Delivery, now: float) -> None:
        """Plan for a delivery that needs no extension now, or has reached its horizon.

        A delivery that its task has hidden for long may be taken along in a batch with space; it is extended
        again before its deadline, like any other. One that nothing extends is looked at again when it is
        lost, at its deadline.
        """
        if self._is_forsaken(delivery, now):
            self._plan_next(delivery, min(now + LOOK_SECONDS, delivery.deadline))
            return
        options = self._options_of(delivery.queue.name)
        if extension_seconds(delivery, options, now) > 0:  # its task has asked just now
            self._plan_next(delivery, AT_ONCE)
            return
        self._answer(delivery)
        goes_on = options.heartbeat_interval and not delivery.at_horizon
        self._plan_next(delivery, None if goes_on else delivery.deadline)

    @staticmethod
    def _is_forsaken(delivery: Delivery, now: float) -> bool:
        """Whether it has not begun, and Celery's loop, which would begin it, stands still."""
        consumer = delivery.consumer
        return delivery.state is State.HELD and consumer is not None and stands_still(consumer.loop_late(now))

    def _why_lapsed(self, delivery: Delivery, now: float, outage: SQSError | None) -> str:
        if delivery.at_horizon:
            return HORIZON_REACHED
        if self._is_forsaken(delivery, now):
            return NOBODY_BEGINS_IT
        return DEADLINE_PASSED if outage is None else f"{DEADLINE_PASSED}: {outage}"

    def _lose(self, delivery: Delivery) -> None:
        delivery.lost = True
        if delivery.lease is not None:
            delivery.lease.lost = True
        self._answer(delivery)

    @staticmethod
    def _answer(delivery: Delivery) -> None:
        """Tell its task that the requested deadline is reached, or cannot be."""
        if delivery.requested_deadline and delivery.lease is not None:
            delivery.lease.answer(delivery.requested_deadline)
        delivery.requested_deadline = 0.0

    def _plan_next(self, delivery: Delivery, not_before: float | None) -> None:
        if delivery.held and not delivery.lost:
            self._schedule([delivery], not_before)

    def _schedule(self, deliveries: Sequence[Delivery], not_before: float | None = None) -> None:
        """Schedule the next extension of deliveries that have the same queue and deadline."""
        deadline, options = deliveries[0].deadline, self._options_of(deliveries[0].queue.name)
        if not_before is None and (interval := options.heartbeat_interval):
            self._extensions.add(deliveries, deadline - interval, seconds_apart(options))
        else:
            self._extensions.add_not_before(deliveries, deadline if not_before is None else not_before)


def stands_still(loop_late: float) -> bool:
    """Whether a loop that has not come round for so many seconds stands still for good."""
    return loop_late >= STANDS_STILL_SECONDS
