"""Copies of held messages on their way to SQS: which are sent, in which batches, and when to stop.

A copy is a dead letter, one record of an event, or a message that goes on waiting for an ETA, a key or a
rate limit. The original stays held and extended until all of its copies are sent or given up.
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

#: The interval at which the deadlines of the originals are checked.
CHECK_SECONDS: Final = 0.5

#: Batches of one event in flight together, once SQS has accepted the first.
BATCHES_SIDE_BY_SIDE: Final = 4

#: After this many records the rest are sent as one message, if possible: a worker that is killed repeats
#: no more than this.
RECORDS_A_TURN: Final = 1000

#: The index of the message that stands for all copies that were not sent.
REMAINDER: Final = -1

#: Errors of a copy that are not retried.
REFUSALS: Final = (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError)


class DeletesRefusedError(AccessDeniedError):
    """A copy was not sent, because its original could not be deleted."""


@dataclass(slots=True, eq=False)
class Sending:
    """The copies of one delivery: which may be sent, and how to settle the original.

    Attributes:
        delivery: the original, held and extended.
        forward: the messages to send, and how to settle the original otherwise.
            next: the index of the first copy that was not begun.
            under_way: the indices of copies that were begun, and neither sent nor given up.
            unsent: the indices of copies that were given up.
            sent: whether any copy was sent; the remainder does not count.
            stopping: whether no further copy is begun.
            abandoned: whether the original is lost, so that no remainder is sent.
            given_back: whether the worker ends, so that the original is released if nothing was sent.
            error: the error of the copy that failed last.
            message_id: the SQS message id of the copy that was sent last.
            remainder_tried: whether sending the remainder was begun.
            most: how many copies are begun: all of them, if no remainder is possible.
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
        """Begin more copies, as many as may be in flight together. Returns their indices."""
        if self.stopping:
            return []
        together = BATCH_ENTRIES * (BATCHES_SIDE_BY_SIDE if self.sent else 1)
        end = min(self.most, self.next + together - len(self.under_way))
        begun = list(range(self.next, end))
        self.next = max(self.next, end)
        self.under_way.update(begun)
        return begun

    def note_sent(self, index: int, message_id: str) -> None:
        """Note that SQS has accepted the copy."""
        self.under_way.discard(index)
        self.message_id = message_id
        if index == REMAINDER:
            self._remainder_sent = True
        else:
            self.sent = True

    def note_unsent(self, index: int, error: SQSError | None) -> None:
        """Note that SQS refused the copy, or that it was withdrawn. No further copy is begun."""
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
        """Whether no copy is in flight and none will begin."""
        return not self.under_way and (self.stopping or self.next >= self.most)

    def remainder(self) -> OutgoingMessage | None:
        """Begin the message that replaces unsent copies; `None` if there can be none, or it was tried."""
        if self.remainder_tried or self.abandoned or not self.sent or not self.left:
            return None
        message = self.forward.remainder(self.left)
        if message is not None:
            self.remainder_tried = True
            self.under_way.add(REMAINDER)
        return message

    @property
    def refusal(self) -> SQSError | None:
        """After the end, the permanent error because of which copies were not sent, if any."""
        return self.error if self.left and isinstance(self.error, REFUSALS) else None

    def settlement(self) -> Settlement | Hold:
        """How to settle the original after the end. Don't call it under a lock: it may call user options."""
        is_letter = self.forward.purpose is Purpose.DEAD_LETTER
        if not self.left:
            return Delete(keeps_payload=self.forward.purpose is not Purpose.RECORDS)
        if self.refusal is None:
            return RELEASE if self.given_back and not self.sent and not is_letter else Lapse()
        return Lapse() if self.remainder_tried else self.forward.otherwise(self.refusal)


class Copy(NamedTuple):
    """Tag of a pending message: its sending, and its index among the copies."""

    sending: Sending
    place: int


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """The messages of one request. An empty batch means only that sendings have ended.

    Attributes:
        message_ids: SQS's message ids by position, filled in by the sender.
    """

    purpose: Purpose
    messages: list[PendingMessage[Copy]]
    message_ids: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)


class PendingCopies:
    """Copies that are pending or in flight. Not thread-safe: the caller locks.

    No further copies are sent of an original that is lost or soon will be. The records of an event that were
    not sent go on as one message, where possible.

    Args:
        window: for how many seconds a batch that is not full waits for more.
        offloads: whether a record of that size in that queue has its payload in S3.
        spare: how many seconds before the deadline of an original its last copy may begin.
        reserve: seconds before the deadline after which nothing is sent.
        check: interval, in seconds, at which the deadlines of the originals are checked.

    Attributes:
        sendings: those of which something may still be sent.
        unfinished: number of sendings that have not ended, or whose end was not reported to all listeners.
        flushing: number of callers that wait for all of them; while there are any, nothing lingers.
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
        self._to_end: list[Sending] = []  # ended, and to be returned by `answered`
        self._pending: dict[Purpose, PendingMessages[Copy]] = {
            purpose: PendingMessages(window, give_up=math.inf) for purpose in Purpose
        }
        self._check_at = 0.0

    def add(self, delivery: Delivery, forward: Forward, now: float) -> None:
        """Send the copies of a delivery that stays held until they have ended."""
        sending = Sending(delivery, forward)
        self.sendings[sending] = None
        self.unfinished += 1
        self._go_on(sending, now)

    def forget(self, delivery: Delivery) -> None:
        """Cancel the copies of a delivery that could not be added."""
        for sending in [each for each in self.sendings if each.delivery is delivery]:
            del self.sendings[sending]
            self.unfinished -= 1
        for pending in self._pending.values():
            pending.withdraw(lambda copy: copy.sending.delivery is delivery)

    def interrupt(self, consumer: Consumer, purposes: tuple[Purpose, ...], now: float) -> None:
        """Stop copies of these purposes as the consumer ends. Originals with nothing sent are released.

        The records that are left of an event go on as one message.
        """
        for sending in list(self.sendings):
            if sending.delivery.consumer is consumer and sending.forward.purpose in purposes:
                sending.given_back = True
                self._stop(sending, now)

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a batch; `None` if nothing is pending."""
        if not self.unfinished:
            return None
        flushing = self.flushing > 0
        if self._to_end or any(each.has_more(flushing=flushing) for each in self._pending.values()):
            return now
        instants = [at for pending in self._pending.values() if (at := pending.due()) is not None]
        return min([*instants, self._check_at]) if self.sendings else min(instants, default=None)

    def ready(self) -> int:
        """About how many batches `take` would return now, given that one is due."""
        return sum(pending.batches_ready() for pending in self._pending.values()) + 1

    def take(self, now: float) -> CopyBatch | None:
        """The next batch, without messages if only sendings have ended; `None` if nothing is due."""
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
        """Stop the sendings whose originals are lost or close to their deadline."""
        for sending in list(self.sendings):
            original = sending.delivery
            sending.abandoned = original.lost_by(now + self._reserve)
            # A dead letter is one message, which may be sent up to the deadline.
            spare = 0 if sending.forward.purpose is Purpose.DEAD_LETTER else self._spare(original)
            if sending.abandoned or original.deadline - now <= spare:
                self._stop(sending, now)

    def answered(self, batch: CopyBatch, failed: Mapping[int, SQSError], now: float) -> list[Sending]:
        """Note the errors of a batch by position, none for an empty batch. Returns the sendings that ended.

        The caller settles each, and then subtracts it from `unfinished`.
        """
        for position, message in enumerate(batch.messages):
            sending, place = message.tag
            if (error := failed.get(position)) is None:
                sending.note_sent(place, batch.message_ids.get(position, ""))
            elif not isinstance(error, REFUSALS):  # a refusal may be meant for another message in the batch
                sending.error = error
        if batch.messages:
            pending = self._pending[batch.purpose]
            pending.conclude(batch.messages, failed, now)
            self._note_given_up(pending)
        for sending in {message.tag.sending: None for message in batch.messages}:
            if sending.abandoned or sending.given_back:  # stopped in flight: do not retry
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
        """Begin further copies. At the end, send the remainder."""
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
