"""Holder of a process's deliveries, from their arrival until SQS was told how they ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.batches import Ended
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.copies import PendingCopies, Sending
from celery_sqs_visibility.core.delivery import Consumer, Delivery, Leases, State
from celery_sqs_visibility.core.endings import CAUSES, Ending, return_of
from celery_sqs_visibility.core.held import Arrival, Held, Past
from celery_sqs_visibility.core.settlements import (
    Delete,
    Direct,
    Forward,
    Hide,
    Hold,
    Lapse,
    Purpose,
    Settlement,
    Why,
)
from celery_sqs_visibility.delivery.endings import measure_end, measure_settlement
from celery_sqs_visibility.delivery.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.payloads.removals import Removals
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copies import Copies
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import DeliveryEnded, SettlementEnded, emit, log_safely
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.options import Options, default_heartbeat
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer

logger = logging.getLogger(__name__)

#: SQS counts a delay from when it handled the request, before its answer arrived here. A message is expected
#: this long after the delay has passed since the answer.
REAPPEARS_AFTER_SECONDS: Final = 0.02

#: How long a delete or a visibility change waits for others to fill a batch. Several deletes wait five times
#: as long, but not those of a FIFO queue.
SETTLE_WINDOW_SECONDS: Final = 0.02

#: How long the end of a consumer waits for payloads that are being removed.
REMOVAL_SECONDS: Final = 1.0


class DeliveryHolder:
    """The `core.delivery.Holder` of all consumers of a process and a broker. Any thread; makes no request.

    Args:
        settle_window: `SETTLE_WINDOW_SECONDS`; 0 sends at once.

    Attributes:
        dead_letters: makes dead letters.
        settler: sends settlements.
        copies: sends copies of held messages.
    """

    def __init__(
        self,
        options: Options,
        redrive: RedriveBook,
        clock: Clock,
        pump: Pump,
        outgoing: OutgoingMessages,
        settle_window: float,
        copies: PendingCopies | None = None,
    ) -> None:
        self.options = options
        self.redrive = redrive
        self._clock = clock
        self._lock = pump.lock  # guards _held, and the mutable fields of its deliveries
        self._held = Held(options.for_queue, options.longest_visibility_timeout, settle_window)
        self._pump = pump
        self._permissions = permissions = CopyPermissions(clock)
        self.parking = Parking(redrive, options.for_queue, clock, permissions)
        self.dead_letters = DeadLetters(redrive)
        self.rejection = Rejection(redrive, options.for_queue, self, self.dead_letters)
        self._store = outgoing.store
        self._removals = Removals(self._store.objects, clock, pump) if self._store else None
        self.settler = Settler(self._held.batches, clock, self._settled, permissions, pump)
        copies = copies or PendingCopies(settle_window, outgoing.offloads, self._spare)
        self.copies = Copies(copies, outgoing, permissions, self.dead_letters, clock, self._copied, pump)
        self._heartbeat = Heartbeat(self._held, clock, self._resume, pump)

    def give_leases(self, leases: Leases | None) -> None:
        """Make the leases of runs there from now on."""
        with self._lock:
            self._held.leases = leases

    @property
    def lanes(self) -> list[Lane[Any]]:
        """The lanes of its requests, to be started."""
        parts = (self._heartbeat, self.settler, self.copies, self._removals)
        return [part.lane for part in parts if part]

    # What is held.

    def get(self, tag: str) -> Delivery | None:
        return self._held.get(tag)

    def all(self) -> list[Delivery]:
        """Everything held, in the order of arrival."""
        if not self._held.messages:
            return []
        with self._lock:
            return self._held.all()

    def of(self, consumer: Consumer) -> list[Delivery]:
        """What is held that this consumer brought, in the order of arrival."""
        if not self._held.messages:
            return []
        with self._lock:
            return self._held.of(consumer)

    def holds_of(self, consumer: Consumer) -> bool:
        """Whether anything is held that this consumer brought."""
        with self._lock:
            return self._held.holds_of(consumer)

    def look(self, capacity: Capacity, now: float) -> None:
        """Let the capacity look at what is held. Twice a second."""
        with self._lock:
            capacity.look(now, self._held.messages.values())

    def wait_until_empty(self, consumer: Consumer, timeout: float) -> bool:
        """Wait until it holds nothing that this consumer brought, for `timeout` seconds; whether it does."""
        with self._lock:
            return self._pump.wait_until(lambda: not self._held.holds_of(consumer), timeout)

    def wait_for_extensions(self, timeout: float) -> bool:
        """Wait until no settlement waits for an extension, for `timeout` seconds; whether none does."""
        with self._lock:
            return self._pump.wait_until(lambda: not self._held.postponed, timeout)

    def next_extension(self) -> float | None:
        """The monotonic instant at which something is to be extended."""
        with self._lock:
            return self._held.next_extension()

    # Receipts.

    def receive(self, deliveries: Sequence[Delivery]) -> list[tuple[Arrival, Delivery]]:
        """One poll brought these: see `Held.receive`."""
        with self._lock:
            return self._held.receive(deliveries, self._clock.monotonic())

    @staticmethod
    def notice_return(delivery: Delivery, arrival: Arrival) -> None:
        """Its message is held here already, or was finished here: it is not run."""
        if arrival is Arrival.HELD:
            emit(events.Superseded(delivery.facts))
        elif arrival is Arrival.FINISHED:
            emit(events.FinishedBefore(delivery.facts))
            delivery.settle(Delete(keeps_payload=True))  # perhaps by a dead letter or a copy

    def extend_in_time(self) -> None:
        """Messages have arrived: see that the pump extends them in time."""
        with self._lock:
            self._heartbeat.notice()

    # Runs.

    def lapsed(self, delivery: Delivery) -> bool:
        """Whether another worker has its message by now, or will; then it is not held any more."""
        receipt = delivery.handle  # first: a newer one may come now
        if not delivery.lost and delivery.deadline > self._clock.monotonic():
            return False
        return self.settle(delivery, Lapse(), receipt)

    def start(self, delivery: Delivery) -> bool:
        """See `Delivery.start`. A started delivery is not given back; a dispatched one runs anyway."""
        if delivery.state is State.HELD and self.lapsed(delivery):
            return False
        with self._lock:
            if not self._held.start(delivery, self._clock.monotonic()):
                return False
        if events.Started.is_wanted():
            emit(events.Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:
        if self.lapsed(delivery):
            return False
        with self._lock:
            return self._held.dispatch(delivery)

    def extend(self, delivery: Delivery, until: float) -> None:
        with self._lock:
            self._held.request_extension(delivery, until, self._clock.monotonic())
            self._heartbeat.notice()

    def tell_lost(self, delivery: Delivery) -> None:
        with self._lock:
            held, receipt = self._held.tell_lost(delivery), delivery.handle
        if held and (on_lost := delivery.on_lost) is not None:
            on_lost(receipt)

    def tell_inactive(self, delivery: Delivery) -> bool:
        """Its run has shown no life: the run hears of it; whether it is held, and has a lease."""
        with self._lock:
            return self._held.tell_inactive(delivery)

    def run_ended(self, delivery: Delivery) -> None:
        if delivery.began is not None and delivery.consumer is not None:
            with self._lock:
                delivery.consumer.capacity.end_run(delivery, delivery.began, self._clock.monotonic())
            delivery.consumer.free(delivery)

    # The end.

    def remember(self, past: Past, delivery: Delivery) -> bool:
        """Note the end of its message; whether it is new."""
        with self._lock:
            return self._held.remember(past, delivery, self._clock.monotonic())

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        """Whether its message has had that end before."""
        return self._held.remembers(past, delivery)

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        if isinstance(settlement, Forward):
            return self._forward(delivery, settlement)
        now = self._clock.monotonic()
        with self._lock:
            if not self._held.settle(delivery, settlement, now, receipt=receipt):
                return False
            try:
                ending = None if delivery.waiting else self._carry_out(delivery, settlement, now)
            finally:
                if self._pump.waiting:  # perhaps for the last that is held
                    self._pump.notify_waiting()
        try:
            if DeliveryEnded.is_wanted():  # asked here, since most workers measure nothing
                measure_end(delivery, settlement, now)
            if ending is not None:
                self._tell(delivery, ending, now)
        finally:
            if delivery.consumer is not None:
                delivery.consumer.free(delivery)
        return True

    def settle_copied(self, delivery: Delivery, settlement: Direct) -> bool:
        """Settle one whose copies were sent, or could not be; whether it was held. A thread of the pump."""
        now = self._clock.monotonic()
        with self._lock:
            if not self._held.settle(delivery, settlement, now, copied=True):
                return False
            ending = None if delivery.waiting else self._carry_out(delivery, settlement, now)
        if ending is not None:
            self._tell(delivery, ending, now)
        if delivery.consumer is not None:
            delivery.consumer.free(delivery)
        return True

    def disclaim(self, delivery: Delivery) -> bool:
        """Its copy is refused, and it is to run after all; whether it is held."""
        with self._lock:
            return self._held.disclaim(delivery)

    def flush_removals(self) -> None:
        """Remove payloads of deleted messages, within a bound; the lifecycle rule removes the others."""
        if self._removals is not None:
            self._removals.flush(REMOVAL_SECONDS)

    def _forward(self, delivery: Delivery, forward: Forward) -> bool:
        """Send its copies, while it stays held without a share of the capacity; `_copied` settles it."""
        now = self._clock.monotonic()
        if delivery.lost or delivery.deadline <= now:
            return self.settle(delivery, Lapse())
        with self._lock:
            try:
                if not self._held.claim(delivery, now):
                    return False
                self.copies.submit(delivery, forward)
            except BaseException:  # memory lacks: it is given back as a message that nobody would settle
                self._held.disclaim(delivery)
                delivery.attended = False
                self.copies.pending.forget(delivery)
                raise
        measure_end(delivery, forward, now)
        if delivery.consumer is not None:
            delivery.consumer.free(delivery)
        return True

    def _spare(self, delivery: Delivery) -> float:
        """Half of the seconds before the deadline at which the heartbeat extends it, or would."""
        options = self.options.for_queue(delivery.queue.name)
        return (options.heartbeat_interval or default_heartbeat(options.visibility_timeout)) / 2

    def _copied(self, sending: Sending) -> None:
        """Nothing more is sent of its copies: settle it, or have Celery hold it. A thread of the pump."""
        delivery, forward, then = sending.delivery, sending.forward, self.copies.settlement(sending)
        if not sending.left:
            self._sent(delivery, forward, sending.message_id)
        if isinstance(then, Forward):
            with self._lock:
                self.copies.submit(delivery, then)
        elif not isinstance(then, Hold):
            self.settle_copied(delivery, then)
        elif delivery.consumer is not None:
            delivery.consumer.take_back(delivery, then.payload)
        else:
            self.settle_copied(delivery, Hide(0, Why.PARKED))

    def _sent(self, delivery: Delivery, forward: Forward, message_id: str) -> None:
        """SQS has what takes the place of the message, at last the message of that id."""
        if forward.purpose is Purpose.DEAD_LETTER:
            emit(events.DeadLettered(delivery.facts, forward.reason))
        elif forward.purpose is Purpose.RENEWAL:
            delay = forward.messages[0].delay_at(self._clock.wall()) or 0
            self._expect(delivery, message_id, self._clock.monotonic() + delay)
            emit(events.Renewed(delivery.facts, delay, CAUSES[forward.why]))

    def _resume(self, delivery: Delivery, settlement: Direct) -> None:
        """Carry out a settlement that had to wait."""
        now = self._clock.monotonic()
        with self._lock:
            ending = self._carry_out(delivery, settlement, now)
        if ending is not None:
            self._tell(delivery, ending, now)

    def _carry_out(self, delivery: Delivery, settlement: Direct, now: float) -> Ending | None:
        """See `Held.carry_out`. Under the lock."""
        ending = self._held.carry_out(delivery, settlement, now)
        if self._held.batches.news:
            self.settler.notice(now)
        return ending

    def _tell(self, delivery: Delivery, ending: Ending, now: float) -> None:
        """It is not deleted: expect its message back, and emit its end. Any thread."""
        event, visible_at = ending
        if visible_at is not None:
            self._expect(delivery, delivery.facts.message_id, visible_at)
        emit(event)
        if visible_at is not None:
            measure_settlement(delivery, now)

    def _settled(self, ended: Iterable[Ended], now: float) -> None:
        """See `settler.Settled`. An error with one message does not concern the others of its batch."""
        is_wanted, is_measured = events.Deleted.is_wanted(), SettlementEnded.is_wanted()
        answered = self._clock.monotonic()
        for one, error in ended:
            delivery = one.delivery
            try:
                if error is not None:
                    self._not_settled(delivery, one.settlement, error, now)
                    continue
                if not isinstance(one.settlement, Delete):
                    self._tell(delivery, return_of(delivery, one.settlement, now), now)
                    continue
                if delivery.lost or delivery.deadline <= answered:
                    # It may be there still, under a newer handle: SQS says OK to a delete with an old one.
                    self.remember(Past.UNDELETED, delivery)
                elif delivery.pointer is not None and not one.settlement.keeps_payload:
                    self._remove_payload(delivery.pointer)
                if is_wanted:
                    emit(events.Deleted(delivery.facts))
                if is_measured:
                    measure_settlement(delivery, now)
            except Exception:  # noqa: BLE001 - logged, if that works
                log_safely(logger.exception, "unexpected error after a message was settled; continuing")

    def _not_settled(self, delivery: Delivery, settlement: Direct, error: SQSError, now: float) -> None:
        if isinstance(settlement, Delete):  # an outage may outlast the memory of what is finished
            self.remember(Past.UNDELETED, delivery)
        lost = Ending(events.Lost(delivery.facts, str(error)), max(now, delivery.deadline))
        self._tell(delivery, lost, now)

    def _expect(self, delivery: Delivery, message_id: str, visible_at: float) -> None:
        if delivery.consumer is not None:
            delivery.consumer.expect(delivery.queue, message_id, visible_at + REAPPEARS_AFTER_SECONDS)

    def _remove_payload(self, pointer: PayloadPointer) -> None:
        """Its message is deleted."""
        if self._removals is not None and self._store is not None and self._store.owns(pointer.key):
            self._removals.submit(pointer.key)
