"""Holder of an invocation's messages, which settles each failed one at SQS at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from celery_sqs_visibility import events
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.copies import PendingCopies, Sending
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.endings import return_of
from celery_sqs_visibility.core.held import Held, Past
from celery_sqs_visibility.core.settlements import (
    RELEASE,
    DeadLetter,
    Delete,
    Hide,
    Lapse,
    Renew,
    Settlement,
    Split,
    Why,
)
from celery_sqs_visibility.delivery.endings import measure_end
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.settle.copies import Copies, settlement_of
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, SQSError, UnavailableError
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

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

#: So long before Lambda's timeout no request is waited for any more: the answer must reach Lambda.
REPORT_SECONDS: Final = 0.3

#: Between two checks of the remaining time, while copies are sent.
CHECK_SECONDS: Final = 0.05

NOT_SETTLED: Final = "the copy of message %r could not be sent, so the message comes back: %s"


class InvocationHolder:
    """The `core.delivery.Holder` of a function's deliveries. Its one thread; requests are made at once.

    The time left for the function bounds each request: a request that Lambda's timeout cuts off would bring
    back the messages of all tasks that have succeeded.

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
        self._held = Held(self.options.for_queue, self.options.longest_visibility_timeout)
        self._held.leases = leases
        self.rejection = Rejection(context.redrive, self.options.for_queue, self)
        self._permissions = CopyPermissions(clock)
        self.parking = Parking(
            context.redrive, self.options.for_queue, clock, self._permissions, held=HOLD_SECONDS, lead=0
        )
        self._dead_letters = DeadLetters(context.redrive, self._permissions, clock, context.worker_name)
        self._outgoing = context.outgoing
        self._clock = clock
        self._sleep = sleep
        self._until = math.inf
        self.done: set[str] = set()

    def begin(self, until: float) -> None:
        """Begin another invocation, which ends at that monotonic instant: all earlier deliveries are over."""
        self._until = until
        self.done.clear()

    def remember(self, past: Past, delivery: Delivery) -> bool:
        return self._held.remember(past, delivery, self._clock.monotonic())

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        return self._held.remembers(past, delivery)

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        if not self._held.settle(delivery, settlement, now := self._clock.monotonic(), receipt=receipt):
            return False
        measure_end(delivery, settlement, now)
        self._carry_out(delivery, settlement)
        return True

    def start(self, delivery: Delivery) -> bool:
        if not self._held.start(delivery, self._clock.monotonic()):
            return False
        emit(events.Started(delivery.facts))
        return True

    def dispatch(self, delivery: Delivery) -> bool:  # noqa: ARG002 - see `core.delivery.Holder`
        """See `core.delivery.Holder`. There are no processes."""
        return True

    def extend(self, delivery: Delivery, until: float) -> None:
        """See `core.delivery.Holder`. The run still ends when the invocation does, so the deadline stays.

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

    def tell_lost(self, delivery: Delivery) -> None:
        self._held.tell_lost(delivery)

    def ran(self, delivery: Delivery) -> None: ...

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make messages that were not run visible at once, as long as there is time."""
        now = self._clock.monotonic()
        for delivery in deliveries:
            self._held.settle(delivery, RELEASE, now)
            measure_end(delivery, RELEASE, now)
        for start in range(0, len(deliveries), BATCH_ENTRIES):
            some = deliveries[start : start + BATCH_ENTRIES]
            error = self._change_visibility(some[0].queue, some, 0)
            if error is None:
                for delivery in some:
                    emit(events.Released(delivery.facts))
            elif self._time_left() <= 0:
                return

    def _carry_out(self, delivery: Delivery, settlement: Settlement) -> None:
        match settlement:
            case Delete():
                self.done.add(delivery.facts.message_id)
            case Hide():
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
            sent = self.in_time(partial(self._dead_letters.send, delivery, letter))
        except SQSError as error:
            logger.warning(NOT_SETTLED, delivery.facts.message_id, error)
            return
        if sent:
            emit(events.DeadLettered(delivery.facts, letter.reason))
        self._carry_out(delivery, Delete() if sent else letter.otherwise)

    def _send_copies(self, delivery: Delivery, copying: Renew | Split) -> None:
        """Send copies while time is left, and settle the original. Lambda deletes it if all were sent."""
        try:
            sending = self.in_time(partial(self._copied, delivery, copying))
        except SQSError as error:
            logger.warning(NOT_SETTLED, delivery.facts.message_id, error)
            return
        sending.given_back = True
        then = settlement_of(sending, self._permissions)
        if isinstance(then, Delete) and isinstance(copying, Renew):
            emit(events.Renewed(delivery.facts, copying.copy.delay_at(self._clock.wall()) or 0))
        self._carry_out(delivery, then or Hide(0, Why.PARKED))

    def _copied(self, delivery: Delivery, copying: Renew | Split) -> Sending:
        """Send copies on this thread."""
        ended: list[Sending] = []
        pending = PendingCopies(
            0.0,
            self._outgoing.offloads,
            lambda _delivery: ANSWER_SECONDS + COPY_SECONDS,
            reserve=ANSWER_SECONDS,
            check=CHECK_SECONDS,
        )
        clock = self._clock
        copies = Copies(pending, self._outgoing, self._permissions, clock, ended.append, Pump(clock))
        pending.add(delivery, copying, clock.monotonic())
        while pending.unfinished:
            if not copies.lane.send_next():
                now = self._clock.monotonic()
                self._sleep(max(0.0, (copies.due(now) or now) - now))
        return ended[0]

    def _change_visibility(
        self, queue: Queue, deliveries: Sequence[Delivery], seconds: int
    ) -> SQSError | None:
        """Change visibility; return the first error, which is logged."""
        changes = [(delivery.handle, seconds) for delivery in deliveries]
        try:
            change = partial(queue.sqs.change_visibility, queue.url, changes)
            failed = list(self.in_time(change).failed.values())
        except SQSError as error:
            failed = [error]
        if not failed:
            return None
        logger.warning(NOT_HIDDEN, queue.name, failed[0])
        return failed[0]

    def in_time(self, request: Callable[[], T], reserve: float = REPORT_SECONDS) -> T:
        """Make a request on a thread, which is left alone if it has no answer that long before the timeout.

        Raises:
            UnavailableError: there was no time; SQS may have got the request, or may get it yet.
            SQSError: the request's own.
        """
        answer: Future[T] = Future()
        left = self._time_left(reserve)
        if left > 0:
            if start_thread(partial(_answer, answer, request), "sqs-lambda") is None:
                return request()
            with suppress(TimeoutError):
                return answer.result(left)
        raise UnavailableError("no time was left before Lambda's timeout", code="TooSlow")

    def _time_left(self, reserve: float = REPORT_SECONDS) -> float:
        return self._until - reserve - self._clock.monotonic()


def _answer(answer: Future[T], request: Callable[[], T]) -> None:
    try:
        answer.set_result(request())
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
        answer.set_exception(error)
