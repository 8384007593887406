"""Holder of an invocation's messages, which settles each failed one at SQS at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.endings import measure_end, return_of
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settle.copies import Copies, Sending, settlement_of
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settlements import (
    DeadLetter,
    Delete,
    Hide,
    Lapse,
    Park,
    Release,
    Renew,
    Settlement,
    Split,
)
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

NOT_HIDDEN: Final = (
    "cannot hide or release messages of queue %r, which takes sqs:ChangeMessageVisibility, so they come back "
    "when the queue's own visibility timeout is over: %s"
)

#: Longest wait for an ETA within an invocation: Lambda bills it. A publisher's delay, or a wait in SQS, ends
#: up to a second before the ETA. Of Lambda's default timeout, 3 s, the rest remains for the run.
HOLD_SECONDS: Final = 2

#: So long before Lambda's timeout nothing new is begun, since the function has to answer.
ANSWER_SECONDS: Final = 1.0

#: So long before that no further copy is begun: one request must end, and one must send the other records.
COPY_SECONDS: Final = 1.5

#: Between two checks of the remaining time, while copies are sent.
CHECK_SECONDS: Final = 0.05

NOT_SETTLED: Final = "the copy of message %r could not be sent, so the message comes back: %s"


class InvocationHolder:
    """The `model.Holder` of a function's deliveries. Its one thread; requests are made at once.

    A message that is done is left to Lambda, which deletes what the function does not report as failed.

    Attributes:
        done: the ids of the messages that Lambda is to delete, since the last `begin`.
    """

    def __init__(
        self,
        context: BrokerContext,
        clock: Clock,
        leases: LeaseTable,
        sleep: Callable[[float], object],
    ) -> None:
        self.options = context.options
        self.redrive = context.redrive
        self.rejection = Rejection(
            context.redrive,
            self.options.for_queue,
            RedeliveryIndex(self.options.longest_visibility_timeout, clock),
        )
        self._permissions = CopyPermissions(clock)
        self.parking = Parking(
            context.redrive, self.options.for_queue, clock, self._permissions, held=HOLD_SECONDS, lead=0
        )
        self._dead_letters = DeadLetters(context.redrive, self._permissions, clock, context.worker_name)
        self._copies = Copies(
            context.outgoing,
            self._permissions,
            lambda _delivery: ANSWER_SECONDS + COPY_SECONDS,
            0.0,
            clock,
            self._copied,
            reserve=ANSWER_SECONDS,
            check=CHECK_SECONDS,
        )
        self._clock = clock
        self._sleep = sleep
        self._leases = leases
        self._settled: set[Delivery] = set()
        self.done: set[str] = set()

    def begin(self) -> None:
        """Begin another invocation: all earlier deliveries are over."""
        self._settled.clear()
        self.done.clear()

    def settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """See `model.Holder`."""
        if delivery in self._settled:
            return False
        self._settled.add(delivery)
        measure_end(delivery, settlement, self._clock.monotonic())
        if delivery.lease is not None:
            delivery.lease.end()
            delivery.lease = None
        self._carry_out(delivery, settlement)
        return True

    def start(self, delivery: Delivery) -> bool:
        """See `model.Holder`."""
        delivery.began = self._clock.monotonic()
        delivery.lease = self._leases.take(delivery.deadline, delivery.extend)
        emit(events.Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:  # noqa: ARG002 - see `model.Holder`
        """See `model.Holder`. There are no processes."""
        return True

    def extend(self, delivery: Delivery, until: float) -> bool:
        """See `model.Holder`. The run still ends when the invocation does, so the deadline stays.

        Raises:
            TimeoutError: SQS did not do it. It reaches `Visibility.extend`, which called this.
        """
        seconds = math.ceil(until - self._clock.monotonic())
        error = self._change_visibility(delivery.queue, [delivery], seconds)
        if delivery.lease is not None:
            delivery.lease.answer(until)
            delivery.lease.lost = delivery.lease.lost or isinstance(error, ReceiptHandleInvalidError)
        if error is not None and not isinstance(error, ReceiptHandleInvalidError):
            raise TimeoutError(f"SQS has not confirmed that the message is hidden for {seconds} s: {error}")
        return True

    def tell_lost(self, delivery: Delivery) -> bool:
        """See `model.Holder`."""
        if delivery in self._settled:
            return False
        if delivery.lease is not None:
            delivery.lease.lost = True
        return True

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:  # noqa: ARG002
        """See `model.Holder`. No message comes back to an invocation."""
        return False

    def ran(self, delivery: Delivery) -> None:
        """See `model.Holder`."""

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make messages that were not run visible at once."""
        for delivery in deliveries:
            measure_end(delivery, Release(), self._clock.monotonic())
        for start in range(0, len(deliveries), BATCH_ENTRIES):
            some = deliveries[start : start + BATCH_ENTRIES]
            self._settled.update(some)
            if self._change_visibility(some[0].queue, some, 0) is None:
                for delivery in some:
                    emit(events.Released(delivery.facts))

    def _carry_out(self, delivery: Delivery, settlement: Settlement) -> None:
        match settlement:
            case Delete():
                self.done.add(delivery.facts.message_id)
            case Hide() | Park() | Release():
                if self._change_visibility(delivery.queue, [delivery], settlement.seconds) is None:
                    emit(return_of(delivery, settlement, self._clock.monotonic())[0])
            case Lapse():
                pass
            case DeadLetter():
                self._send_letter(delivery, settlement)
            case Renew() | Split():
                self._send_copies(delivery, settlement)

    def _send_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        """Send the letter; then Lambda deletes the original. A refused letter has another settlement."""
        try:
            sent = self._dead_letters.send(delivery, letter)
        except SQSError as error:
            logger.warning(NOT_SETTLED, delivery.facts.message_id, error)
            return
        if sent:
            emit(events.DeadLettered(delivery.facts, letter.reason))
        self._carry_out(delivery, Delete() if sent else letter.otherwise)

    def _send_copies(self, delivery: Delivery, copying: Renew | Split) -> None:
        """Send copies on this thread while time is left. `_copied` is called before it returns."""
        self._copies.submit(delivery, copying)
        while self._copies.unfinished:
            if not self._copies.batch_threads.send_next():
                now = self._clock.monotonic()
                self._sleep(max(0.0, (self._copies.due(now) or now) - now))

    def _copied(self, sending: Sending) -> None:
        """Settle the original after its last copy. Lambda deletes it if all copies were sent."""
        delivery, copying = sending.delivery, sending.copying
        sending.given_back = True
        then = settlement_of(sending, self._permissions, self.rejection)
        if isinstance(then, Delete) and isinstance(copying, Renew):
            emit(events.Renewed(delivery.facts, copying.copy.delay_at(self._clock.wall()) or 0))
        self._carry_out(delivery, then or Park(0))

    def _change_visibility(
        self, queue: Queue, deliveries: Sequence[Delivery], seconds: int
    ) -> SQSError | None:
        """Change visibility; return the first error, which is logged."""
        changes = [(delivery.handle, seconds) for delivery in deliveries]
        try:
            failed = list(queue.sqs.change_visibility(queue.url, changes).failed.values())
        except SQSError as error:
            failed = [error]
        if not failed:
            return None
        logger.warning(NOT_HIDDEN, queue.name, failed[0])
        return failed[0]
