"""Copies of held messages on their way to SQS: which are sent, together with which, and when no more are.

A copy is a dead letter, one record of an event, or the message that goes on waiting for an ETA, a key or a
rate. The original is settled when SQS has answered for all of its copies: until then it is held and extended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.delivery import Consumer, Delivery
from celery_sqs_visibility.core.pending import PendingMessage, PendingMessages
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Forward, Hold, Lapse, Purpose, Settlement
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    SQSError,
    UnreadableError,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue

#: From one look at the deadlines of the originals to the next.
CHECK_SECONDS: Final = 0.5

#: Batches of one event that are under way together, once the first has shown that SQS takes them.
BATCHES_SIDE_BY_SIDE: Final = 4

#: After this many records the others go on as one message, if there can be one: a worker that is killed
#: repeats no more of them.
RECORDS_A_TURN: Final = 1000

#: The index of the message that stands for the copies that are left.
REMAINDER: Final = -1

#: Errors of a copy that no later try mends.
REFUSALS: Final = (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError)


class DeletesRefusedError(AccessDeniedError):
    """A copy was not sent, since its original could not be deleted."""


@dataclass(slots=True, eq=False)
class Sending:
    """The copies of one delivery: what may be sent, and how that ends.

    Attributes:
        delivery: the original, held and extended.
        forward: what is sent, and what happens otherwise.
        next: the index of the first copy that was not begun.
        under_way: the indices of those that were begun, and neither sent nor given up.
        unsent: the indices of those that were given up.
        sent: whether any was sent, the remainder not counted.
        stopping: whether no further copy is begun.
        abandoned: whether the original is lost, so that no message stands for the copies that are left.
        given_back: whether the worker ends, so that the original is released where nothing was sent.
        error: why a copy was given up, or failed last.
        message_id: SQS's, of the copy that was sent last.
        remainder_tried: whether the message that stands for the copies that are left was begun.
        most: how many copies are begun: all, where no message can stand for those that are left.
    """

    delivery: Delivery
    forward: Forward
    next: int = 0
    under_way: set[int] = field(default_factory=set)
    unsent: list[int] = field(default_factory=list)
    sent: bool = False
    stopping: bool = False
    abandoned: bool = False
    given_back: bool = False
    error: SQSError | None = None
    message_id: str = ""
    _remainder_sent: bool = False
    remainder_tried: bool = False
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = len(self.forward.messages)
        if self.most > RECORDS_A_TURN:
            left = range(RECORDS_A_TURN, self.most)
            self.most = self.most if self.forward.remainder(left) is None else RECORDS_A_TURN

    def begin(self) -> list[int]:
        """The indices of the copies that may be under way now, too."""
        if self.stopping:
            return []
        together = BATCH_ENTRIES * (BATCHES_SIDE_BY_SIDE if self.sent else 1)
        end = min(self.most, self.next + together - len(self.under_way))
        begun = list(range(self.next, end))
        self.next = max(self.next, end)
        self.under_way.update(begun)
        return begun

    def note_sent(self, index: int, message_id: str) -> None:
        """SQS has the copy."""
        self.under_way.discard(index)
        self.message_id = message_id
        if index == REMAINDER:
            self._remainder_sent = True
        else:
            self.sent = True

    def note_unsent(self, index: int, error: SQSError | None) -> None:
        """The copy is not sent: SQS refuses it, or it was withdrawn. No further ones are begun."""
        self.under_way.discard(index)
        self.stopping = True
        self.error = error or self.error
        if index != REMAINDER:
            self.unsent.append(index)

    @property
    def left(self) -> list[int]:
        """The indices of the copies that were not sent, in order."""
        if self._remainder_sent:
            return []
        return [*sorted(self.unsent), *range(self.next, len(self.forward.messages))]

    @property
    def ended(self) -> bool:
        """Whether nothing is under way, nor begins."""
        return not self.under_way and (self.stopping or self.next >= self.most)

    def remainder(self) -> OutgoingMessage | None:
        """After its end, the message for the copies that are left; `None` where none can be, or was tried."""
        if self.remainder_tried or self.abandoned or not self.sent or not self.left:
            return None
        message = self.forward.remainder(self.left)
        if message is not None:
            self.remainder_tried = True
            self.under_way.add(REMAINDER)
        return message

    @property
    def refusal(self) -> SQSError | None:
        """After its end, the error for which copies are left that no later try would send."""
        return self.error if self.left and isinstance(self.error, REFUSALS) else None

    def settlement(self) -> Settlement | Hold:
        """How to settle the original after the end. Not under a lock: options of the user may be asked."""
        is_letter = self.forward.purpose is Purpose.DEAD_LETTER
        if not self.left:
            return Delete(keeps_payload=self.forward.purpose is not Purpose.RECORDS)
        if self.refusal is None:
            return RELEASE if self.given_back and not self.sent and not is_letter else Lapse()
        return Lapse() if self.remainder_tried else self.forward.otherwise(self.refusal)


class Copy(NamedTuple):
    """Tag of a pending message: the sending that it belongs to, and its place among the copies."""

    sending: Sending
    place: int


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """The messages of one request; of none, there is only something to conclude.

    Attributes:
        message_ids: SQS's, by position, where they count.
    """

    purpose: Purpose
    messages: list[PendingMessage[Copy]]
    message_ids: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)


class PendingCopies:
    """Copies that are not over. Not thread-safe: the caller locks.

    Copies of an original that is lost, or will be, are not sent; the other records of an event go on as one
    message, which begins where the sending stopped.

    Args:
        window: for how many seconds a batch that is not full waits for more.
        offloads: whether the payload of a record of that size goes to S3, in its queue.
        spare: seconds before the deadline of an original at which no further copy is begun.
        reserve: seconds before the deadline at which nothing is sent any more.
        check: seconds from one look at the deadlines of the originals to the next.

    Attributes:
        sendings: those of which something may be sent yet.
        unfinished: how many there are, and how many have ended without everybody having been told.
        flushing: how many wait for all of them: nothing lingers then.
    """

    def __init__(
        self,
        window: float,
        offloads: Callable[[Queue, int], bool],
        spare: Callable[[Delivery], float],
        reserve: float = 0.0,
        check: float = CHECK_SECONDS,
    ) -> None:
        self.sendings: dict[Sending, None] = {}
        self.unfinished = 0
        self.flushing = 0
        self.check: Final = check
        self._offloads = offloads
        self._spare = spare
        self._reserve = reserve
        self._to_end: list[Sending] = []  # nothing more is sent of them
        self._pending: dict[Purpose, PendingMessages[Copy]] = {
            purpose: PendingMessages(window, give_up=math.inf) for purpose in Purpose
        }
        self._check_at = 0.0

    def add(self, delivery: Delivery, forward: Forward, now: float) -> None:
        """Send the copies of a delivery that is held until they have ended."""
        sending = Sending(delivery, forward)
        self.sendings[sending] = None
        self.unfinished += 1
        self._go_on(sending, now)

    def forget(self, delivery: Delivery) -> None:
        """Send nothing of a delivery that could not be added."""
        for sending in [each for each in self.sendings if each.delivery is delivery]:
            del self.sendings[sending]
            self.unfinished -= 1
        for pending in self._pending.values():
            pending.withdraw(lambda copy: copy.sending.delivery is delivery)

    def interrupt(self, consumer: Consumer, purposes: tuple[Purpose, ...], now: float) -> None:
        """The consumer ends: of these purposes begin nothing more, and release what nothing was sent of.

        The records that are left of an event go on as one message.
        """
        for sending in list(self.sendings):
            if sending.delivery.consumer is consumer and sending.forward.purpose in purposes:
                sending.given_back = True
                self._stop(sending, now)

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a batch; `None` if that is not known."""
        if not self.unfinished:
            return None
        flushing = self.flushing > 0
        if self._to_end or any(each.has_more(flushing=flushing) for each in self._pending.values()):
            return now
        instants = [at for pending in self._pending.values() if (at := pending.due()) is not None]
        return min([*instants, self._check_at]) if self.sendings else min(instants, default=None)

    def ready(self) -> int:
        """About how many batches `take` would return now, where one is due."""
        return sum(pending.batches_ready() for pending in self._pending.values()) + 1

    def take(self, now: float) -> CopyBatch | None:
        """The next batch; one without messages where some have ended; `None` if nothing is due."""
        if not self.unfinished:
            return None
        if now >= self._check_at:
            self._check_at = now + self.check
            self.stop_late(now)
        for purpose, pending in self._pending.items():
            if messages := pending.take(now, flushing=self.flushing > 0):
                return CopyBatch(purpose, messages)
        return CopyBatch(Purpose.RECORDS, []) if self._to_end else None

    def stop_late(self, now: float) -> None:
        """Stop where the original is lost, or will be, as far as is known."""
        for sending in list(self.sendings):
            original = sending.delivery
            sending.abandoned = original.lost or original.deadline <= now + self._reserve
            # A dead letter is one message, which may be sent up to the deadline.
            spare = 0 if sending.forward.purpose is Purpose.DEAD_LETTER else self._spare(original)
            if sending.abandoned or original.deadline - now <= spare:
                self._stop(sending, now)

    def answered(self, batch: CopyBatch, failed: Mapping[int, SQSError], now: float) -> list[Sending]:
        """The request of the batch, if it took one, has ended with these errors: what has ended by now.

        Each is settled by the caller, who then counts it out of `unfinished`.
        """
        for position, message in enumerate(batch.messages):
            sending, place = message.tag
            if (error := failed.get(position)) is None:
                sending.note_sent(place, batch.message_ids.get(position, ""))
            elif not isinstance(error, REFUSALS):  # which may be another message's in the batch
                sending.error = error
        if batch.messages:
            pending = self._pending[batch.purpose]
            pending.conclude(batch.messages, failed, now)
            self._note_given_up(pending)
        for sending in {message.tag.sending: None for message in batch.messages}:
            if sending.abandoned or sending.given_back:  # meanwhile: what failed is not sent again
                self._stop(sending, now)
            else:
                self._go_on(sending, now)
        to_end, self._to_end = self._to_end, []
        return to_end

    def _note_given_up(self, pending: PendingMessages[Copy]) -> None:
        for (sending, index), error in pending.failures:
            sending.note_unsent(index, error)
        pending.failures.clear()

    def _go_on(self, sending: Sending, now: float) -> None:
        """Begin further copies; at the end, send the message that stands for those that are left."""
        for index in sending.begin():
            self._add(sending, index, now)
        while sending.ended and sending in self.sendings:
            remainder = sending.remainder()
            if remainder is not None:
                self._add(sending, REMAINDER, now, remainder)
            else:
                del self.sendings[sending]
                self._to_end.append(sending)

    def _add(self, sending: Sending, index: int, now: float, message: OutgoingMessage | None = None) -> None:
        purpose = sending.forward.purpose
        pending, offloads = self._pending[purpose], self._offloads if purpose is Purpose.RECORDS else _never
        try:
            copy = sending.forward.messages[index] if message is None else message
        except UnreadableError as error:
            sending.note_unsent(index, RequestRefusedError(str(error)))
            return
        pending.add(sending.delivery.queue, copy, Copy(sending, index), now, offloads)
        self._note_given_up(pending)

    def _stop(self, sending: Sending, now: float) -> None:
        """Begin no further copy, and withdraw those that wait for a request."""
        sending.stopping = True
        for copy in self._pending[sending.forward.purpose].withdraw(
            lambda copy: copy.sending is sending and (copy.place != REMAINDER or sending.abandoned)
        ):
            sending.note_unsent(copy.place, None)
        self._go_on(sending, now)


def _never(_queue: Queue, _size: int) -> bool:
    return False
