"""Holder of deliveries, from their arrival until they are settled; it carries the settlements out."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, cast

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.endings import measure_end, measure_settlement, return_of
from celery_sqs_visibility.delivery.hold.heartbeat import DEADLINE_PASSED, Heartbeat
from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.hold.redelivery import Arrival, Past, RedeliveryIndex
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.payloads.removals import Removals
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.receive.receiver import Receivers
from celery_sqs_visibility.delivery.receive.turns import Turns
from celery_sqs_visibility.delivery.settle.copies import Copies, Sending, settlement_of
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settle.settler import Ended, Settler
from celery_sqs_visibility.delivery.settlements import (
    DeadLetter,
    Delete,
    Hide,
    Lapse,
    Renew,
    Replaced,
    Settlement,
    Split,
)
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import emit, log_safely
from celery_sqs_visibility.measurements import DeliveryEnded
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.options import Options, default_heartbeat
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.prefetch import Slots

logger = logging.getLogger(__name__)

#: SQS counts a delay from when it handled the request, before its answer arrived here. A message is expected
#: this long after the delay has passed since the answer.
REAPPEARS_AFTER_SECONDS: Final = 0.02


def holder_of(delivery: Delivery) -> DeliveryHolder:
    """Its holder: of a message that comes back to a process, a `DeliveryHolder` has each delivery."""
    return cast("DeliveryHolder", delivery.holder)


class DeliveryHolder(ABC):
    """The `model.Holder` of deliveries. Any thread; I/O in its own threads only."""

    def __init__(
        self,
        options: Options,
        redrive: RedriveBook,
        redeliveries: RedeliveryIndex,
        clock: Clock,
        slots: Callable[[], Slots] | None,
        leases: LeaseTable | None,
        worker_name: str,
        outgoing: OutgoingMessages | None,
        turns: Turns | None = None,
        pump: Pump | None = None,
    ) -> None:
        self.options = options
        self.redrive = redrive
        self.capacity = ReceiveCapacity(options.prefetch_seconds, clock, slots, turns)
        self._turns = turns
        self._receivers = Receivers()
        self.ledger = Ledger(options.for_queue, leases, redeliveries.lock)
        permissions = CopyPermissions(clock)
        self.parking = Parking(redrive, options.for_queue, clock, permissions)
        self.rejection = Rejection(redrive, options.for_queue, redeliveries)
        self.redeliveries = redeliveries
        self._clock = clock
        self._outgoing = outgoing or OutgoingMessages()
        store = self._outgoing.store
        self._pump = pump or Pump(clock)
        self._removals = Removals(store.objects, clock, self._pump) if store else None
        self._dead_letters = DeadLetters(redrive, permissions, clock, worker_name)
        self._settler = Settler(
            options.settle_window, clock, self._settled, self._send_letter, permissions, self._pump
        )
        self._permissions = permissions
        self._closed = False  # whether the threads end once nothing is held any more
        self._copies = Copies(
            self._outgoing,
            permissions,
            self._spare,
            options.settle_window,
            clock,
            self._copied,
            pump=self._pump,
        )
        self._heartbeat = Heartbeat(self.ledger, clock, self._resume, self._pump)

    @abstractmethod
    def _take_back(self, delivery: Delivery, renew: Renew) -> bool:
        """The queue refuses the copy, and would not hand out the original again: Celery holds it.

        Returns:
            Whether the delivery was still held. A thread of the pump.
        """

    @abstractmethod
    def _released(self) -> None:
        """A delivery is not held any more: end the threads, once this is closed and nothing is held."""

    def _expect(self, queue: Queue, message_id: str, at: float) -> None:
        """A message of the queue becomes visible at that monotonic instant: poll then."""
        self._receivers.expect(queue.name, message_id, at)

    def notice_return(self, delivery: Delivery, arrival: Arrival) -> None:
        """Its message is held here already, or was finished here: it is not run."""
        if arrival is Arrival.HELD:
            emit(events.Superseded(delivery.facts))
        elif arrival is Arrival.OUTDATED:
            delivery.lost = True  # which is not told: nothing was begun with it
            delivery.settle(Lapse())
        else:
            emit(events.FinishedBefore(delivery.facts))
            delivery.settle(Replaced())  # perhaps by a dead letter or a copy

    def lapsed(self, delivery: Delivery) -> bool:
        """Whether another worker has its message by now, or will; then it is not held any more."""
        if not delivery.lost and delivery.deadline > self._clock.monotonic():
            return False
        return delivery.holder.settle(delivery, Lapse())  # `False` if it was superseded just now

    def start(self, delivery: Delivery) -> bool:
        """See `model.Holder`. A started delivery is not given back; a dispatched one runs in any case."""
        if not delivery.dispatched and self.lapsed(delivery):
            return False
        if not self.ledger.start(delivery, self._clock.monotonic()):
            return False
        if events.Started.is_wanted():
            emit(events.Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:
        """See `model.Holder`."""
        return not self.lapsed(delivery) and self.ledger.dispatch(delivery)

    def extend(self, delivery: Delivery, until: float) -> bool:
        """See `model.Holder`."""
        held = self.ledger.request_extension(delivery, until, self._clock.monotonic())
        self._heartbeat.notice()
        return held

    def tell_lost(self, delivery: Delivery) -> bool:
        """See `model.Holder`."""
        held = self.ledger.tell_lost(delivery)
        if held and (on_lost := delivery.on_lost) is not None:
            on_lost(delivery)
        return held

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:
        """See `model.Holder`. The newer delivery may be another consumer's. A receiver's thread."""
        if not self.ledger.supersede(delivery, superseded_by):
            return False
        if self._turns is not None:
            self._turns.hand_on(superseded_by)
        self.capacity.take_again(delivery)
        superseded_by.take_after(delivery)
        # A claimed delivery has no share of the capacity: the newer one in its place needs none.
        holder = holder_of(superseded_by.current) if delivery.claimed else self
        holder.capacity.release(queue=delivery.queue.name, fifo=delivery.queue.fifo)
        if self._closed:
            self._released()
        if wanted := superseded_by.current.requested_deadline:  # its task still waits for that
            superseded_by.extend(wanted)
        return True

    def ran(self, delivery: Delivery) -> None:
        """See `model.Holder`."""
        if delivery.began is not None:
            self.capacity.end_run(delivery, delivery.began, queue=delivery.queue.name)
            if self._turns is not None:
                self._turns.end(delivery)

    def settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """See `model.Holder`."""
        if isinstance(settlement, (Renew, Split)):
            return self._copy(delivery, settlement)
        done = isinstance(settlement, Delete)
        finish = self.redeliveries.finish if done else None
        held, at_once = self.ledger.settle(delivery, settlement, finish)
        if not held:
            return False
        try:
            if not done:
                self.redeliveries.remove(delivery)
            now = self._clock.monotonic()
            if DeliveryEnded.is_wanted():  # asked here, since most workers measure nothing
                measure_end(delivery, settlement, now)
            if at_once:
                self._carry_out(delivery, settlement, now)
        finally:  # not before: nothing that this wakes may keep the settlement from being sent
            self.capacity.free(delivery)
            if self._closed:
                self._released()
        return True

    def _copy(self, delivery: Delivery, copying: Renew | Split) -> bool:
        """Send its copies, while it stays held without a share of the capacity; `_copied` settles it."""
        if delivery.lost or delivery.deadline <= self._clock.monotonic():
            return self.settle(delivery, Lapse())
        if not self.ledger.claim(delivery):
            return False
        measure_end(delivery, copying, self._clock.monotonic())
        self._copies.submit(delivery, copying)
        self.capacity.free(delivery)
        return True

    def _spare(self, delivery: Delivery) -> float:
        """Half of the seconds before the deadline at which the heartbeat extends it, or would."""
        options = self.options.for_queue(delivery.queue.name)
        return (options.heartbeat_interval or default_heartbeat(options.visibility_timeout)) / 2

    def _copied(self, sending: Sending) -> None:
        """Nothing more is sent of its copies: settle it. A thread of the pump.

        Another consumer may have received it again meanwhile, and hold it.
        """
        then, copying = settlement_of(sending, self._permissions, self.rejection), sending.copying
        delivery = sending.delivery.current
        if isinstance(then, Replaced) and isinstance(copying, Renew):
            self._renewed(delivery, copying, sending.message_id)
        while not holder_of(delivery).end_copying(delivery, copying, then) and delivery.superseded_by:
            delivery = delivery.current

    def end_copying(self, delivery: Delivery, copying: Renew | Split, then: Settlement | None) -> bool:
        """Settle a claimed delivery, or, where `then` is `None`, take it back; whether it was held."""
        if then is None and isinstance(copying, Renew):
            return self._take_back(delivery, copying)
        return then is not None and self._settle_claimed(delivery, then)

    def _settle_claimed(self, delivery: Delivery, settlement: Settlement) -> bool:
        finish = self.redeliveries.finish if isinstance(settlement, Delete) else None
        held, at_once = self.ledger.settle(delivery, settlement, finish, claimed=True)
        if held:
            self.redeliveries.remove(delivery)
        if at_once:
            self._resume(delivery, settlement)
        if held and self._closed:
            self._released()
        return held

    def _renewed(self, delivery: Delivery, renew: Renew, copy_id: str) -> None:
        """The copy goes on."""
        delay = renew.copy.delay_at(self._clock.wall()) or 0
        visible_at = self._clock.monotonic() + delay
        self._expect(delivery.queue, copy_id, visible_at + REAPPEARS_AFTER_SECONDS)
        emit(events.Renewed(delivery.facts, delay))

    def _resume(self, delivery: Delivery, settlement: Settlement) -> None:
        """Carry out a settlement that had to wait."""
        self._carry_out(delivery, settlement, self._clock.monotonic())

    def _carry_out(self, delivery: Delivery, settlement: Settlement, now: float) -> None:
        """Carry out the settlement of a delivery that the ledger does not hold any more."""
        if delivery.deadline <= now and not delivery.lost:
            delivery.lost = True
            emit(events.Lost(delivery.facts, DEADLINE_PASSED))
        if delivery.lost and not isinstance(settlement, Delete):
            return  # it is visible again by itself; a delete may spare a second run, if not of a FIFO queue
        if isinstance(settlement, Lapse):
            timeout = self.options.for_queue(delivery.queue.name).visibility_timeout
            if delivery.deadline <= now + timeout:
                self._expect_again(delivery, settlement, None, now)
                return
            # Its task has extended it for longer than its next attempt should wait.
            settlement = Hide(timeout)
        self._settler.submit(delivery, settlement, now)

    def _settled(self, ended: Iterable[Ended], now: float) -> None:
        """See `settler.Settled`. An error with one message does not concern the others of its batch."""
        is_wanted, answered = events.Deleted.is_wanted(), self._clock.monotonic()
        for one, error in ended:
            delivery = one.delivery
            try:
                if error is not None or not isinstance(one.settlement, Delete):
                    self._expect_again(delivery, one.settlement, error, now)
                    continue
                if delivery.lost or delivery.deadline <= answered:
                    # It may be there still, under a newer handle: SQS says OK to a delete with an old one.
                    self._remember_undeleted(delivery)
                elif delivery.pointer is not None and not isinstance(one.settlement, Replaced):
                    self._remove_payload(delivery.pointer)
                if is_wanted:
                    emit(events.Deleted(delivery.facts))
                if delivery.settled_at is not None:  # somebody measures
                    measure_settlement(delivery, now)
            except Exception:  # noqa: BLE001 - logged, if that works
                log_safely(logger.exception, "unexpected error after a message was settled; continuing")

    def _expect_again(
        self, delivery: Delivery, settlement: Settlement, error: SQSError | None, now: float
    ) -> None:
        """It is not deleted: expect its message back, and emit its end. Any thread."""
        if error is not None:
            if isinstance(settlement, Delete):  # an outage may outlast the memory of what is finished
                self._remember_undeleted(delivery)
            event: events.Event = events.Lost(delivery.facts, str(error))
            visible_at = max(now, delivery.deadline)
        elif isinstance(settlement, DeadLetter):
            return  # `_send_letter` has submitted the settlement that follows
        else:
            event, visible_at = return_of(delivery, settlement, now)
        again_at = visible_at + REAPPEARS_AFTER_SECONDS
        self._expect(delivery.queue, delivery.facts.message_id, again_at)
        emit(event)
        if delivery.settled_at is not None:  # somebody measures
            measure_settlement(delivery, now)

    def _remember_undeleted(self, delivery: Delivery) -> None:
        self.redeliveries.remember(Past.UNDELETED, delivery.queue, delivery.facts.message_id)

    def _remove_payload(self, pointer: PayloadPointer) -> None:
        """Its message is deleted."""
        store = self._outgoing.store
        if self._removals and store and store.owns(pointer.key):
            self._removals.submit(pointer.key)

    def _send_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        """Send the dead letter, and submit the settlement that follows. A thread of the pump."""
        if self._dead_letters.send(delivery, letter):
            self.redeliveries.finish(delivery)
            emit(events.DeadLettered(delivery.facts, letter.reason))
            self._resume(delivery, Replaced())
        elif not self.ledger.postponed(delivery, letter.otherwise):
            self._resume(delivery, letter.otherwise)
