"""Holder of an invocation's messages. Makes each request at once, within the time that is left."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from celery_sqs_visibility.core.copies import PendingCopies, Sending
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.endings import Ending
from celery_sqs_visibility.core.held import Arrival
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Direct, Lapse, Purpose, Settlement
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.inline import InlinePump
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

NOT_HIDDEN: Final = (
    "cannot hide or release messages of queue %r, which takes sqs:ChangeMessageVisibility, so they come back "
    "when the queue's own visibility timeout is over: %s"
)

NO_TIME: Final = "no time was left before Lambda's timeout"

#: The longest wait for an ETA within an invocation, which Lambda bills. A publisher's delay, or a wait in
#: SQS, ends up to a second before the ETA. Lambda's default timeout is 3 s; the rest is for the run.
MAX_ETA_WAIT_SECONDS: Final = 2

#: No run begins in this time before Lambda's timeout, because the function must still answer.
ANSWER_SECONDS: Final = 1.0

#: No copy begins in this time before that: one request must end, and another sends the remaining records.
COPY_SECONDS: Final = 1.5

#: Requests are abandoned this long before Lambda's timeout, because the answer must reach Lambda.
REPORT_SECONDS: Final = 0.3

#: The interval at which the remaining time is checked while copies are sent.
CHECK_SECONDS: Final = 0.05


class InvocationHolder(DeliveryHolder):
    """Holder of a function's deliveries, on the inline driver: its methods return when SQS has answered.

    The function's remaining time limits each request: a request cut off by Lambda's timeout would bring back
    the messages of all tasks that have succeeded. So a failed settlement is not retried.

    A finished message is left to Lambda, which deletes messages that the function does not report as failed.

    Attributes:
        done: the ids of the messages that Lambda should delete, since the last `begin`.
    """

    def __init__(
        self, context: BrokerContext, clock: Clock, leases: LeaseTable, sleep: Callable[[float], object]
    ) -> None:
        self._sleep = sleep
        self._until = math.inf
        self._told: set[type[SQSError]] = set()
        self.done: set[str] = set()
        own = context.options
        # Lambda's timeout ends before the queue's.
        queues = {glob: {**entry, "heartbeat_interval": 0.0} for glob, entry in own.queues.items()}
        options = replace(own, heartbeat_interval=0.0, queues=queues)
        copies = PendingCopies(
            0.0,
            context.outgoing.offloads,
            lambda _delivery: ANSWER_SECONDS + COPY_SECONDS,
            reserve=ANSWER_SECONDS,
            check=CHECK_SECONDS,
        )
        self._inline = pump = InlinePump(clock, self.in_time)
        super().__init__(options, context.redrive, pump, context.outgoing, 0.0, copies)
        self.settler.batches.tries_again = False
        self.dead_letters.worker_name = context.worker_name
        self.give_leases(leases)
        self.parking = Parking(
            context.redrive, options.for_queue, clock, self._permissions, held=MAX_ETA_WAIT_SECONDS, lead=0
        )

    def begin(self, until: float) -> None:
        """Begin another invocation, which ends at that monotonic instant."""
        self._until = until
        self._told.clear()
        self.done.clear()

    def hold(self, deliveries: Sequence[Delivery], until: float) -> set[Delivery]:
        """Hold messages until the invocation ends at that monotonic instant. Returns those to run."""
        for delivery in deliveries:
            delivery.deadline = until
        new = set()
        for arrival, delivery in self.receive(deliveries):
            if arrival is Arrival.NEW:
                new.add(delivery)
            else:
                self.notice_return(delivery, arrival)
        return new

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        settled = super().settle(delivery, settlement, receipt)
        self._work_off()
        return settled

    def extend(self, delivery: Delivery, until: float) -> None:
        """Hide the message until that instant. The run still ends with the invocation, so its deadline stays.

        Raises:
            TimeoutError: SQS did not confirm it. `Visibility.extend`, the caller, raises it to the task.
        """
        seconds, ends = math.ceil(until - self._now()), delivery.deadline
        super().extend(delivery, until)
        self._work_off()
        delivery.deadline = ends
        if delivery.lease is not None:
            delivery.lease.deadline = ends
        if delivery.requested_deadline:
            why = self._heartbeat.why_not(delivery.queue)
            raise TimeoutError(f"SQS has not confirmed that the message is hidden for {seconds} s: {why}")

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make messages that did not run visible at once, if there is time."""
        for delivery in deliveries:
            super().settle(delivery, RELEASE)
        self._work_off()

    def _work_off(self) -> None:
        self._inline.work_off()
        while self.copies.pending.unfinished:
            self._sleep(max(0.0, self._inline.next_due() - self._now()))
            self._inline.work_off()

    def _carry_out(self, delivery: Delivery, settlement: Direct, now: float) -> Ending | None:
        """Leave finished messages to Lambda, and lapsed ones to the queue's visibility timeout."""
        if isinstance(settlement, Delete):
            self.done.add(delivery.facts.message_id)
        if isinstance(settlement, (Delete, Lapse)):
            return None
        return super()._carry_out(delivery, settlement, now)

    def _copied(self, sending: Sending) -> None:
        sending.given_back = True
        if sending.left and sending.refusal is None and sending.forward.purpose is Purpose.DEAD_LETTER:
            logger.warning(
                "the copy of message %r could not be sent, so the message comes back: %s",
                sending.delivery.facts.message_id,
                sending.error or NO_TIME,
            )
        super()._copied(sending)

    def _not_settled(self, delivery: Delivery, settlement: Direct, error: SQSError, now: float) -> None:  # noqa: ARG002
        if type(error) not in self._told:
            self._told.add(type(error))
            logger.warning(NOT_HIDDEN, delivery.queue.name, error)

    def in_time(self, request: Callable[[], T], reserve: float = REPORT_SECONDS) -> T:
        """Make a request in a thread, and abandon it `reserve` seconds before the timeout.

        Raises:
            UnavailableError: time was up; SQS may have got the request, or may still get it.
            SQSError: of the request.
        """
        answer: Future[T] = Future()
        left = self._until - reserve - self._now()
        if left > 0:
            if start_thread(partial(_answer, answer, request), "sqs-lambda") is None:
                return request()
            with suppress(TimeoutError):
                return answer.result(left)
        raise UnavailableError(NO_TIME, code="TooSlow")


def _answer(answer: Future[T], request: Callable[[], T]) -> None:
    try:
        answer.set_result(request())
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
        answer.set_exception(error)
