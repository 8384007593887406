"""Messages that this process holds or held: who settles each, when it is extended, which come back."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from celery_sqs_visibility.core.batches import PendingSettlement, SettlementBatches
from celery_sqs_visibility.core.delivery import ENDING, Consumer, Delivery, Leases, State
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

#: A loop that has been blocked for this long is taken for dead: what waits for it never begins.
STANDS_STILL_SECONDS: Final = 60.0

#: The interval at which a blocked loop is checked again.
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
    HELD = "of a message that is held here: it replaces the older receipt"
    REPEATED = "held here: an answer listed it twice, or came twice"
    OUTDATED = "of a message that is held here under a newer one, and lapsed before it arrived"
    FINISHED = "of a message that was finished here"


class Past(enum.Enum):
    """Ends of messages that this process no longer holds. The value is how many of each to remember.

    Memory of finished messages keeps them from running twice, so its limit should never be reached: 300,000
    messages are two minutes' worth at 2,500 a second, and take less than 100 MB. Memory of rejected and kept
    messages only prevents repeated log lines.
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
    """The result of an extension.

    Attributes:
        delivery: the delivery.
        held: whether it is still held under the receipt that was extended.
        waiting: the settlement that waited for the extension, to be carried out now.
        extended: whether SQS extended it.
        lost: the reason, if it has just been lost.
    """

    delivery: Delivery
    held: bool
    waiting: Direct | None
    extended: bool = False
    lost: str | None = None


class Held:
    """Deliveries that this process holds, and memory of earlier ones. Not thread-safe: the holder locks.

    A settled delivery is removed, so no further extension of it begins. But an extension in flight may reach
    SQS late and overwrite the visibility timeout that a settlement sets. So a settlement that keeps the
    message waits, in the delivery, until the extension has returned. A deletion doesn't wait: an extension
    never brings a deleted message back.

    SQS hands a message to its holder again if its visibility timeout ran out, or because standard queues
    deliver at least once. Only the newest receipt counts.

    Args:
        options_of: returns the options of a queue. Its deliveries are extended by `visibility_timeout`, at
            `heartbeat_interval` before their deadline; with an interval of 0 only if their task asks for it.
        visibility_timeout: the longest of any queue, in seconds; finished messages are remembered for longer.
        window: seconds for which a settlement lingers, so that others can share its request.
    """

    def __init__(self, options_of: OptionsOfQueue, visibility_timeout: float, window: float = 0.0) -> None:
        self._options_of = options_of
        #: Held deliveries, by queue URL and message id.
        self.messages: dict[tuple[str, str], Delivery] = {}
        self._by_tag: dict[str, Delivery] = {}
        # Deliveries that were settled before they ran, by tag, while anything refers to them.
        self._gone: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        self.postponed = 0  # settlements that wait for an extension in flight
        self._extensions = ExtensionSchedule()
        #: The settlements to be sent to SQS.
        self.batches = SettlementBatches(window)
        # A message that is given up and kept comes back again and again within 12 hours; one whose deletion
        # failed comes back once SQS answers again.
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
        #: Makes the leases of runs; `None` if there are none.
        self.leases: Leases | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def get(self, tag: str) -> Delivery | None:
        """The delivery with that tag; `None` once it ran and is settled, or nothing refers to it any more.

        A delivery that was settled before it ran is found, but can't be started. A caller that passes a tag
        on keeps a reference to the delivery until the receiver has looked it up.
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

    def receive(self, deliveries: Sequence[Delivery], now: float) -> list[tuple[Arrival, Delivery]]:
        """Take in the deliveries of one poll, which have the same queue and deadline.

        Returns:
            What each receipt means to this process, and the delivery that holds its message. New and finished
            ones are held from now on; a finished one is to be deleted.
        """
        added: list[Delivery] = []
        try:
            return [self._arrive(delivery, now, added) for delivery in deliveries]
        finally:  # if memory runs out, some were added
            if added:
                self._hold(added)

    def _hold(self, added: Sequence[Delivery]) -> None:
        if (consumer := added[0].consumer) is not None:
            consumer.capacity.count(added[0], len(added))
        self._schedule(added)

    def _arrive(self, delivery: Delivery, now: float, added: list[Delivery]) -> tuple[Arrival, Delivery]:
        key = delivery.message_key
        held = self.messages.get(key)
        if held is None:
            # If memory runs out in between, the message isn't held: `_remove` looks at the tags.
            self._by_tag[delivery.tag] = self.messages[key] = delivery
            added.append(delivery)
            if key in self._finished or key in self._undeleted:
                return Arrival.FINISHED, delivery
            return Arrival.NEW, delivery
        delivery.state = State.SETTLED
        if delivery.handle == held.handle:
            return Arrival.REPEATED, held
        if delivery.deadline <= now and delivery.deadline < held.deadline:
            return Arrival.OUTDATED, held  # the process may have been stopped meanwhile
        self._renew(held, delivery)
        return Arrival.HELD, held

    def _renew(self, held: Delivery, newer: Delivery) -> None:
        """Replace the receipt by a newer one. The answer to an extension of the old one no longer counts."""
        held.handle, held.deadline, held.horizon = newer.handle, newer.deadline, newer.horizon
        held.lost = False
        facts = newer.facts
        if facts.task is None:  # its payload is in S3 and isn't fetched again
            facts = replace(facts, task=held.facts.task, task_id=held.facts.task_id)
        if held.carrier is not None:  # Celery has counted the attempt
            facts = replace(facts, attempt=held.facts.attempt, eta=held.facts.eta)
        held.facts = facts
        if held.lease is not None:
            held.lease.renew(held.deadline, held.horizon)
        if not held.extending:
            self._schedule([held], AT_ONCE if held.requested_deadline else None)

    def begin(self, delivery: Delivery, now: float | None) -> bool:
        """Mark a delivery as running since `now`. Returns `False` if it may not run.

        `None` means that it was handed to a pool that can't be kept from running it.
        """
        if delivery.state in ENDING:
            return False
        if now is not None:
            delivery.state, delivery.began = State.RUNNING, now
        elif delivery.state is State.HELD:
            delivery.state = State.DISPATCHED
        if delivery.lease is None and self.leases is not None:
            lease = self.leases.take(delivery.deadline, delivery.extend, delivery.horizon)
            if delivery.lost and lease is not None:  # just now, or it would not begin
                lease.lost = True
            delivery.lease = lease
        return True

    def tell_lost(self, delivery: Delivery) -> bool:
        """Mark its lease as lost, though the message is still extended. Returns whether it is held."""
        if delivery.lease is not None:
            delivery.lease.lost = True
        return delivery.held

    def tell_inactive(self, delivery: Delivery) -> bool:
        """Tell a run that it was silent for too long. Returns whether the delivery has a lease."""
        if delivery.lease is None:
            return False
        delivery.lease.tell_inactive()
        return True

    def claim(self, delivery: Delivery, now: float) -> bool:
        """Reserve a delivery for the sender of its copies, who settles it. Returns whether it was free."""
        if delivery.state in ENDING:
            return False
        delivery.state = State.COPYING
        self._end_run(delivery, now)
        return True

    def disclaim(self, delivery: Delivery) -> bool:
        """Let a claimed delivery run after all, in another request of Celery. Returns whether it is held."""
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
        receipt: str | None = None,
        *,
        copied: bool = False,
    ) -> bool:
        """Settle a delivery: the first settlement counts. Returns whether this was the first.

        Args:
            delivery: the delivery.
            settlement: how it ends. The caller carries it out next, unless it is now in `delivery.waiting`:
                then `answered` returns it later.
            now: the monotonic instant.
            receipt: settle it only if this is still its latest receipt handle.
            copied: whether the caller is the sender of its copies, the only one that may settle it then.
        """
        if (delivery.state is not State.COPYING) if copied else (delivery.state in ENDING):
            return False
        if receipt is not None and receipt != delivery.handle:
            return False
        if isinstance(settlement, Delete):
            self.finish(delivery, now)
        else:
            self._kept.add(delivery.message_key, now)
        self._remove(delivery)
        if not copied:  # or `claim` has ended its run
            self._end_run(delivery, now)
        if delivery.extending and not isinstance(settlement, Delete):
            delivery.waiting = settlement
            self.postponed += 1
        return True

    def carry_out(self, delivery: Delivery, settlement: Direct, now: float) -> Ending | None:
        """Queue the settlement of a delivery for SQS, if it needs a request.

        Returns:
            The end of a delivery that needs no request or is lost; otherwise `None`.
        """
        ending = None
        if delivery.deadline <= now and not delivery.lost:
            delivery.lost = True
            ending = Ending(Lost(delivery.facts, DEADLINE_PASSED))
        if isinstance(settlement, Delete):
            pass  # a delete may prevent a second run of a lost message, except in a FIFO queue
        elif delivery.lost:
            return ending  # SQS has made it visible already
        elif isinstance(settlement, Lapse):
            timeout = self._options_of(delivery.queue.name).visibility_timeout
            if delivery.deadline <= now + timeout:
                return return_of(delivery, settlement, now)
            # Its task has extended it for longer than its next attempt should wait.
            settlement = Hide(timeout)
        self.batches.add(PendingSettlement(delivery, settlement, now))
        return ending

    def _remove(self, delivery: Delivery) -> None:
        if delivery.tag in self._by_tag:
            if delivery.began is None:  # it may still be looked up
                self._gone[delivery.tag] = delivery
            self._extensions.remove(delivery)
            del self.messages[delivery.message_key]
            del self._by_tag[delivery.tag]  # last: if memory runs out before, the next try repeats all of it
        delivery.state = State.SETTLED

    @staticmethod
    def _end_run(delivery: Delivery, now: float) -> None:
        """Free its place and end its lease: an extension in flight must not write to a row that is reused."""
        delivery.settled_at = now
        if (consumer := delivery.consumer) is not None:
            consumer.capacity.free(delivery, now)
        if (lease := delivery.lease) is not None:
            lease.end()
            delivery.lease = None

    def finish(self, delivery: Delivery, now: float) -> None:
        """Remember a finished message: if it comes back, it is deleted again.

        If its deletion fails, it comes back when its visibility timeout runs out. That may be hours later if
        its task asked for it; an extension in flight may add another visibility timeout.
        """
        self._finished.add(delivery.message_key, now, delivery.deadline + MARGIN_SECONDS)

    def remember(self, past: Past, delivery: Delivery, now: float) -> bool:
        """Remember this end of the message. Returns whether it is new."""
        return self._past[past].add(delivery.message_key, now)

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        """Whether the message had that end before. Any thread."""
        return delivery.message_key in self._past[past]

    def request_extension(self, delivery: Delivery, until: float, now: float) -> None:
        """Extend a delivery next, so that it is hidden until that monotonic instant, as its task asked.

        A lost delivery is not extended; its lease shows that to the task.
        """
        if not delivery.held or delivery.lost:
            return
        delivery.requested_deadline = until
        if not delivery.extending:
            apart = seconds_apart(self._options_of(delivery.queue.name))
            self._extensions.add([delivery], now, apart)

    def next_extension(self) -> float | None:
        """The monotonic instant from which `take_due` returns extensions; `None` if nothing is scheduled."""
        return self._extensions.next_due()

    def batches_due(self, now: float) -> int:
        """How many batches `take_due` would return now."""
        return self._extensions.batches_due(now)

    def take_due(self, now: float) -> list[Extension]:
        """Take the extensions of one request, all of one queue. They count as in flight from now on."""
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
        """Note the result of an extension, requested at `since`, or without a request if it has 0 seconds.

        `error` is the error of that request. `outage` is why SQS has not extended other messages lately, if
        so.
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
        if error is None and seconds and delivery.deadline > now:  # the usual case
            self._extended(delivery, since + seconds)
            return Answered(delivery, delivery.held, waiting, extended=True)
        lost = None
        if isinstance(error, ReceiptHandleInvalidError):
            lost = str(error)
        elif delivery.deadline <= now:
            lost = ANSWERED_LATE if seconds and error is None else self._why_lapsed(delivery, now, outage)
        elif not seconds:
            self._not_extensible(delivery, now)
        else:  # retried until the deadline
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
        """Schedule a delivery that needs no extension now, or has reached its horizon.

        A delivery that its task has hidden for long may be in a batch only because there was room; it is
        extended before its deadline like any other. A delivery that is no longer extended is checked at its
        deadline, when it is lost.
        """
        if self._is_forsaken(delivery, now):
            self._plan_next(delivery, min(now + LOOK_SECONDS, delivery.deadline))
            return
        options = self._options_of(delivery.queue.name)
        if extension_seconds(delivery, options, now) > 0:  # its task has asked meanwhile
            self._plan_next(delivery, AT_ONCE)
            return
        self._answer(delivery)
        goes_on = options.heartbeat_interval and not delivery.at_horizon
        self._plan_next(delivery, None if goes_on else delivery.deadline)

    @staticmethod
    def _is_forsaken(delivery: Delivery, now: float) -> bool:
        """Whether it has not begun, and the event loop that would begin it is blocked for good."""
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
        """Tell its task that the requested deadline is reached, or can't be."""
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
    """Whether a loop that has been blocked for that many seconds is taken for dead."""
    return loop_late >= STANDS_STILL_SECONDS
