"""How settlements end: sent to SQS or not worth it, told as events, expected back."""

from __future__ import annotations

from collections.abc import Callable

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.hold.heartbeat import DEADLINE_PASSED
from celery_sqs_visibility.delivery.model import (
    DeadLetter,
    Delete,
    Delivery,
    Hide,
    Lapse,
    Park,
    Release,
    Renew,
    Settlement,
)
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settle.parking import Parking
from celery_sqs_visibility.delivery.settle.settler import Settler
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import (
    DeadLettered,
    Deleted,
    Hidden,
    Lost,
    Parked,
    Released,
    Renewed,
    emit,
)
from celery_sqs_visibility.policy.clock import Clock

#: SQS counts a delay from when it handled the request, which was before the answer reached us: a message
#: is looked for that much after the delay has passed since the answer.
REAPPEARS_AFTER = 0.02


class Settlements:
    """Carries out settlements of deliveries that the ledger has let go of. Any thread; does no I/O itself.

    Args:
        visibility_timeout: seconds after which a message that nobody extends comes back, at the latest.
        window: seconds that a settlement waits for company.
        clock: the monotonic clock of the deadlines.
        redrive: knows the dead-letter queues.
        finish: is told of what is done with, before it is deleted.
        expect: is told when a message becomes visible again: its queue, its id, the monotonic instant.
        postponed: the ledger's, for what is done where a dead letter was not taken.
        parking: sends the copies of messages that wait for their ETA.
        take_back: is told of those whose copy was refused, and that may not come back.
        worker_name: see `DeadLetters`.
    """

    def __init__(
        self,
        visibility_timeout: int,
        window: float,
        clock: Clock,
        redrive: RedriveBook,
        finish: Callable[[Delivery], None],
        expect: Callable[[Queue, str, float], None],
        postponed: Callable[[Delivery, Settlement], bool],
        parking: Parking,
        take_back: Callable[[Delivery, Renew], None],
        worker_name: str = "",
    ) -> None:
        self._visibility_timeout = visibility_timeout
        self.settler = Settler(window, clock, self._settled, self._send_copy)
        self._clock = clock
        self._finish = finish
        self._dead_letters = DeadLetters(redrive, worker_name)
        self._expect_at = expect
        self._postponed = postponed
        self._parking = parking
        self._take_back = take_back

    def carry_out(self, delivery: Delivery, settlement: Settlement) -> None:
        """Do that with it, if it is still worth it."""
        now = self._clock.monotonic()
        if delivery.deadline <= now and not delivery.lost:
            delivery.lost = True
            emit(Lost(delivery.facts, DEADLINE_PASSED))
        if isinstance(settlement, Delete):
            # Of what was lost it may come too late, but it does no harm and may spare a second run.
            self.settler.submit(delivery, settlement)
        elif delivery.lost:
            pass  # it comes back by itself, to whoever asks first
        elif isinstance(settlement, Lapse) and delivery.deadline > now + self._visibility_timeout:
            # Its task has extended it for longer than anybody wants to wait for its next attempt.
            self.settler.submit(delivery, Hide(self._visibility_timeout))
        elif isinstance(settlement, Lapse):
            self._settled(delivery, settlement, None, now)
        else:
            self.settler.submit(delivery, settlement)

    def _settled(
        self, delivery: Delivery, settlement: Settlement, error: SQSError | None, now: float
    ) -> None:
        """Expect it back, and tell what became of it. The settler's threads, or the one that settled."""
        facts = delivery.facts
        if error is not None:
            self._expect(delivery, max(now, delivery.deadline))
            emit(Lost(facts, str(error)))
            return
        match settlement:
            case Delete():
                emit(Deleted(facts))
            case Hide(seconds):
                self._expect(delivery, now + seconds)
                emit(Hidden(facts, seconds))
            case Park(seconds):
                self._expect(delivery, now + seconds)
                emit(Parked(facts, seconds))
            case Lapse():
                self._expect(delivery, delivery.deadline)
                emit(Hidden(facts, max(0.0, delivery.deadline - now)))
            case Release():
                self._expect(delivery, now)
                emit(Released(facts))
            case DeadLetter() | Renew():
                pass  # its copy was sent, or was not; what follows is settled in its own right

    def _expect(self, delivery: Delivery, at: float) -> None:
        self._expect_at(delivery.queue, delivery.facts.message_id, at + REAPPEARS_AFTER)

    def _send_copy(self, delivery: Delivery, settlement: DeadLetter | Renew) -> None:
        if isinstance(settlement, Renew):
            self._renew(delivery, settlement)
        else:
            self._dead_letter(delivery, settlement)

    def _renew(self, delivery: Delivery, renew: Renew) -> None:
        delay = renew.copy.delay or 0
        if (copy_id := self._parking.send(delivery, renew)) is not None:
            self._expect_at(delivery.queue, copy_id, self._clock.monotonic() + delay + REAPPEARS_AFTER)
            emit(Renewed(delivery.facts, delay))
            self._finish(delivery)
            self.carry_out(delivery, Delete())
        elif renew.park is not None:
            self.carry_out(delivery, Park(renew.park))
        else:
            self._take_back(delivery, renew)

    def _dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        if self._dead_letters.send(delivery, letter):
            emit(DeadLettered(delivery.facts, letter.reason))
            self._finish(delivery)
            self.carry_out(delivery, Delete())
        elif not self._postponed(delivery, letter.otherwise):
            self.carry_out(delivery, letter.otherwise)
