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
from celery_sqs_visibility.core.endings import CAUSES, Ending, end_of, return_of, settlement_end_of
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
from celery_sqs_visibility.policy.options import Options, default_heartbeat
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer

logger = logging.getLogger(__name__)

#: SQS counts a delay from when it handled the request, which is before its answer arrived here. A message is
#: expected this long after the delay, counted from the answer.
REAPPEARS_AFTER_SECONDS: Final = 0.02

#: How long a delete or a visibility change waits for others to share its request. Once there are several
#: deletes, they wait five times as long, except in a FIFO queue.
SETTLE_WINDOW_SECONDS: Final = 0.02

#: How long closing a consumer waits for the removal of payloads.
REMOVAL_SECONDS: Final = 1.0


class DeliveryHolder:
    """The `core.delivery.Holder` of all consumers of a process and a broker. Any thread; makes no request.

    Args:
        settle_window: `SETTLE_WINDOW_SECONDS`; 0 sends at once.

    Attributes:
        dead_letters: makes dead letters.
        settler: sends settlements.
        copies: sends copies of held messages.
        store: where payloads that are too large for SQS go, if allowed.
    """

    def __init__(
        self,
        options: Options,
        redrive: RedriveBook,
        pump: Pump,
        outgoing: OutgoingMessages,
        settle_window: float,
        copies: PendingCopies | None = None,
    ) -> None:
        self.options = options
        self.redrive = redrive
        self.pump = pump
        self._clock = clock = pump.clock
        self._now = pump.now
        self._lock = pump.lock  # guards _held, and the mutable fields of its deliveries
        self._held = Held(options.for_queue, options.longest_visibility_timeout, settle_window)
        self._permissions = permissions = CopyPermissions(clock)
        self.parking = Parking(redrive, options.for_queue, clock, permissions)
        self.dead_letters = DeadLetters(redrive)
        self.rejection = Rejection(redrive, options.for_queue, self, self.dead_letters)
        self.store = outgoing.store
        self._removals = Removals(self.store.objects, pump) if self.store else None
        self.settler = Settler(self._held.batches, self._settled, permissions, pump)
        copies = copies or PendingCopies(settle_window, outgoing.offloads, self._spare)
        self.copies = Copies(copies, outgoing, permissions, self.dead_letters, self._copied, pump)
        self._heartbeat = Heartbeat(self._held, self._resume, pump)

    def give_leases(self, leases: Leases | None) -> None:
        """Set where the leases of runs are made from now on."""
        self._held.leases = leases

    @property
    def lanes(self) -> list[Lane[Any]]:
        """The lanes of the holder's requests, to be started."""
        parts = (self._heartbeat, self.settler, self.copies, self._removals)
        return [part.lane for part in parts if part]

    def get(self, tag: str) -> Delivery | None:
        return self._held.get(tag)

    def all(self) -> list[Delivery]:
        """All deliveries, in the order of arrival."""
        if not self._held.messages:
            return []
        with self._lock:
            return self._held.all()

    def of(self, consumer: Consumer) -> list[Delivery]:
        """The deliveries of this consumer, in the order of arrival."""
        if not self._held.messages:
            return []
        with self._lock:
            return self._held.of(consumer)

    def holds_of(self, consumer: Consumer) -> bool:
        """Whether a delivery of this consumer is held."""
        with self._lock:
            return self._held.holds_of(consumer)

    def look(self, capacity: Capacity, now: float) -> None:
        """Check the capacity's counts against the held deliveries. Twice a second."""
        with self._lock:
            capacity.look(now, self._held.messages.values())

    def wait_until_empty(self, consumer: Consumer, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the consumer holds nothing. Returns whether it holds nothing."""
        with self._lock:
            return self.pump.wait_until(lambda: not self._held.holds_of(consumer), timeout)

    def wait_for_extensions(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until no settlement waits for an extension. Whether none does."""
        with self._lock:
            return self.pump.wait_until(lambda: not self._held.postponed, timeout)

    def next_extension(self) -> float | None:
        """The monotonic instant of the next extension; `None` if none is scheduled."""
        with self._lock:
            return self._held.next_extension()

    def receive(self, deliveries: Sequence[Delivery]) -> list[tuple[Arrival, Delivery]]:
        with self._lock:
            return self._held.receive(deliveries, self._now())

    @staticmethod
    def notice_return(delivery: Delivery, arrival: Arrival) -> None:
        """Handle a newer receipt of a message that is held or was finished here: it is not run."""
        if arrival is Arrival.HELD:
            emit(events.Superseded(delivery.facts))
        elif arrival is Arrival.FINISHED:
            emit(events.FinishedBefore(delivery.facts))
            delivery.settle(Delete(keeps_payload=True))  # a dead letter or a copy may need it

    def extend_in_time(self) -> None:
        """Make sure that messages that have arrived are extended in time."""
        with self._lock:
            self._heartbeat.notice()

    def lapsed(self, delivery: Delivery) -> bool:
        """Whether another worker has the message or soon will. If so, the delivery is settled."""
        receipt = delivery.handle  # read first: a newer one may arrive now
        if not delivery.lost_by(self._now()):
            return False
        return self.settle(delivery, Lapse(), receipt)

    def start(self, delivery: Delivery) -> bool:
        """Mark it as running. A started delivery is not given back; a dispatched one runs anyway."""
        if delivery.state is State.HELD and self.lapsed(delivery):
            return False
        with self._lock:
            if not self._held.begin(delivery, self._now()):
                return False
        if events.Started.is_wanted():
            emit(events.Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:
        if self.lapsed(delivery):
            return False
        with self._lock:
            return self._held.begin(delivery, None)

    def extend(self, delivery: Delivery, until: float) -> None:
        with self._lock:
            self._held.request_extension(delivery, until, self._now())
            self._heartbeat.notice()

    def tell_lost(self, delivery: Delivery) -> None:
        with self._lock:
            held, receipt = self._held.tell_lost(delivery), delivery.handle
        if held and (on_lost := delivery.on_lost) is not None:
            on_lost(receipt)

    def tell_inactive(self, delivery: Delivery) -> bool:
        """Tell a run that it was silent for too long. Returns whether the delivery has a lease."""
        with self._lock:
            return self._held.tell_inactive(delivery)

    def run_ended(self, delivery: Delivery) -> None:
        if delivery.began is not None and delivery.consumer is not None:
            with self._lock:
                delivery.consumer.capacity.end_run(delivery, delivery.began, self._now())
            delivery.consumer.free(delivery)

    def remember(self, past: Past, delivery: Delivery) -> bool:
        """Remember this end of the message. Returns whether it is new."""
        with self._lock:
            return self._held.remember(past, delivery, self._now())

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        """Whether the message had that end before."""
        return self._held.remembers(past, delivery)

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        if isinstance(settlement, Forward):
            return self._forward(delivery, settlement)
        now = self._now()
        with self._lock:
            if not self._held.settle(delivery, settlement, now, receipt):
                return False
            try:
                ending = None if delivery.waiting else self._carry_out(delivery, settlement, now)
            finally:
                if self.pump.waiting:  # this may be the last delivery that is held
                    self.pump.notify_waiting()
        try:
            if DeliveryEnded.is_wanted():  # most workers measure nothing
                _measure(end_of(delivery, settlement, now))
            if ending is not None:
                self._tell(delivery, ending, now)
        finally:
            if (consumer := delivery.consumer) is not None:
                consumer.free(delivery)
        return True

    def settle_copied(self, delivery: Delivery, settlement: Direct) -> bool:
        """Settle it when its copies have ended. Returns whether it was held. A thread of the pump."""
        now = self._now()
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
        """Let a delivery run after all, because its copy was refused. Returns whether it is held."""
        with self._lock:
            return self._held.disclaim(delivery)

    def flush_removals(self) -> None:
        """Remove payloads of deleted messages, in bounded time. The lifecycle rule removes the rest."""
        if self._removals is not None:
            self._removals.flush(REMOVAL_SECONDS)

    def _forward(self, delivery: Delivery, forward: Forward) -> bool:
        """Send the copies of a delivery, which stays held but takes no capacity. `_copied` settles it."""
        now = self._now()
        if delivery.lost_by(now):
            return self.settle(delivery, Lapse())
        with self._lock:
            try:
                if not self._held.claim(delivery, now):
                    return False
                self.copies.submit(delivery, forward)
            except BaseException:  # such as MemoryError: the message is given back, as nobody would settle it
                self._held.disclaim(delivery)
                delivery.attended = False
                self.copies.pending.forget(delivery)
                raise
        if DeliveryEnded.is_wanted():
            _measure(end_of(delivery, forward, now))
        if delivery.consumer is not None:
            delivery.consumer.free(delivery)
        return True

    def _spare(self, delivery: Delivery) -> float:
        """Half of the time, in seconds, that a heartbeat leaves before the deadline."""
        options = self.options.for_queue(delivery.queue.name)
        return (options.heartbeat_interval or default_heartbeat(options.visibility_timeout)) / 2

    def _copied(self, sending: Sending) -> None:
        """Settle a delivery whose copies have ended, or let Celery hold it. A thread of the pump."""
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
        """Emit that the copies were sent. `message_id` is that of the last copy."""
        if forward.purpose is Purpose.DEAD_LETTER:
            emit(events.DeadLettered(delivery.facts, forward.reason))
        elif forward.purpose is Purpose.RENEWAL:
            delay = forward.messages[0].delay_at(self._clock.wall()) or 0
            self._expect(delivery, message_id, self._now() + delay)
            emit(events.Renewed(delivery.facts, delay, CAUSES[forward.why]))

    def _resume(self, delivery: Delivery, settlement: Direct) -> None:
        """Carry out a settlement that waited for an extension."""
        now = self._now()
        with self._lock:
            ending = self._carry_out(delivery, settlement, now)
        if ending is not None:
            self._tell(delivery, ending, now)

    def _carry_out(self, delivery: Delivery, settlement: Direct, now: float) -> Ending | None:
        """Call `Held.carry_out`, and wake the settler if needed. Under the lock."""
        ending = self._held.carry_out(delivery, settlement, now)
        if self._held.batches.news:
            self.settler.notice(now)
        return ending

    def _tell(self, delivery: Delivery, ending: Ending, now: float) -> None:
        """Expect back a message that is not deleted, and emit its end. Any thread."""
        event, visible_at = ending
        if visible_at is not None:
            self._expect(delivery, delivery.facts.message_id, visible_at)
        emit(event)
        if visible_at is not None and SettlementEnded.is_wanted():
            _measure(settlement_end_of(delivery, now))

    def _settled(self, ended: Iterable[Ended], now: float) -> None:
        """Report settlements that are over. An error with one of them must not affect the others."""
        is_wanted, is_measured = events.Deleted.is_wanted(), SettlementEnded.is_wanted()
        answered = self._now()
        for one, error in ended:
            delivery = one.delivery
            try:
                if error is not None:
                    self._not_settled(delivery, one.settlement, error, now)
                    continue
                if not isinstance(one.settlement, Delete):
                    self._tell(delivery, return_of(delivery, one.settlement, now), now)
                    continue
                if delivery.lost_by(answered):
                    # SQS also answers OK to a delete with an expired handle, so the message may still exist.
                    self.remember(Past.UNDELETED, delivery)
                elif delivery.pointer is not None and not one.settlement.keeps_payload:
                    self._remove_payload(delivery.pointer)
                if is_wanted:
                    emit(events.Deleted(delivery.facts))
                if is_measured:
                    _measure(settlement_end_of(delivery, now))
            except Exception:  # noqa: BLE001 - logged, if that works
                log_safely(logger.exception, "unexpected error after a message was settled; continuing")

    def _not_settled(self, delivery: Delivery, settlement: Direct, error: SQSError, now: float) -> None:
        if isinstance(settlement, Delete):  # an outage may outlast the memory of finished messages
            self.remember(Past.UNDELETED, delivery)
        lost = Ending(events.Lost(delivery.facts, str(error)), max(now, delivery.deadline))
        self._tell(delivery, lost, now)

    def _expect(self, delivery: Delivery, message_id: str, visible_at: float) -> None:
        if delivery.consumer is not None:
            delivery.consumer.expect(delivery.queue, message_id, visible_at + REAPPEARS_AFTER_SECONDS)

    def _remove_payload(self, pointer: PayloadPointer) -> None:
        """Remove the payload of a deleted message from S3, unless it belongs to another producer."""
        if self._removals is not None and self.store is not None and self.store.owns(pointer.key):
            self._removals.submit(pointer.key)


def _measure(end: DeliveryEnded | SettlementEnded | None) -> None:
    if end is not None:
        emit(end)
