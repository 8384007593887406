"""Copies of held messages on their way to SQS: in batches, side by side, while the originals stay held.

A copy is one record of an event, or the message that goes on waiting for an ETA, a key or a rate. The
original is settled when SQS has answered for all of its copies: until then it is held and extended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.delivery import Consumer, Delivery
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Renew, Settlement, Split, Why
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.publish.pending import PendingMessage, PendingMessages
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions, DeletesRefusedError
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    AccessDeniedError,
    AnswerLostError,
    QueueDoesNotExistError,
    RequestRefusedError,
    SQSError,
    UnreadableError,
)
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: Requests of a worker that are under way together.
MOST_IN_FLIGHT: Final = 8

#: From one look at the deadlines of the originals to the next.
CHECK_SECONDS: Final = 0.5

#: How the log calls each kind of request when it fails, and when it works again.
ACTIONS: Final[Mapping[type[Renew | Split], str]] = {
    Renew: "send copies of messages with a far ETA",
    Split: "send the records of events as a message each",
}

#: Batches of one event that are under way together, once the first has shown that SQS takes them.
BATCHES_SIDE_BY_SIDE: Final = 4

#: After this many records the others go on as one message, if there can be one: a worker that is killed
#: repeats no more of them.
RECORDS_A_TURN: Final = 1000

#: The index of the message that stands for the copies that are left.
REMAINDER: Final = -1

#: Errors of a copy that no later try mends.
REFUSALS: Final = (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError)

NOT_SENT: Final = (
    "cannot send to queue %r, so a message whose ETA is far away waits there only as long as the queue's "
    "redrive policy and retention let it; allow sqs:SendMessage: %s"
)


@dataclass(slots=True, eq=False)
class Sending:
    """The copies of one delivery: decisions only. Guarded by the lock of `Copies`.

    Attributes:
        delivery: the original, held and extended.
        copying: what is sent.
        next: the index of the first copy that was not begun.
        under_way: the indices of those that were begun, and neither sent nor given up.
        unsent: the indices of those that were given up.
        sent: how many were sent, the remainder not counted.
        stopping: whether no further copy is begun.
        abandoned: whether the original is lost, so that no message stands for the copies that are left.
        given_back: whether the worker ends, so that the original is released where nothing was sent.
        error: why a copy was given up, if one was.
        message_id: SQS's, of the copy that was sent last.
        remainder_tried: whether the message that stands for the copies that are left was begun.
        most: how many copies are begun: all, where no message can stand for those that are left.
    """

    delivery: Delivery
    copying: Renew | Split
    next: int = 0
    under_way: set[int] = field(default_factory=set)
    unsent: list[int] = field(default_factory=list)
    sent: int = 0
    stopping: bool = False
    abandoned: bool = False
    given_back: bool = False
    error: SQSError | None = None
    message_id: str = ""
    _remainder_sent: bool = False
    remainder_tried: bool = False
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = len(self.copies)
        if isinstance(self.copying, Split) and self.most > RECORDS_A_TURN:
            left = range(RECORDS_A_TURN, self.most)
            self.most = self.most if self.copying.remainder(left) is None else RECORDS_A_TURN

    @property
    def copies(self) -> Sequence[OutgoingMessage]:
        """The copies, each of which is made when it is asked for."""
        return self.copying.copies if isinstance(self.copying, Split) else (self.copying.copy,)

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
            self.sent += 1

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
        return [] if self._remainder_sent else [*sorted(self.unsent), *range(self.next, len(self.copies))]

    @property
    def ended(self) -> bool:
        """Whether nothing is under way, nor begins."""
        return not self.under_way and (self.stopping or self.next >= self.most)

    def remainder(self) -> OutgoingMessage | None:
        """After its end, the message for the copies that are left; `None` where none can be, or was tried."""
        if self.remainder_tried or self.abandoned or not self.sent or not isinstance(self.copying, Split):
            return None
        message = self.copying.remainder(self.left) if self.left else None
        if message is not None:
            self.remainder_tried = True
            self.under_way.add(REMAINDER)
        return message


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

    kind: type[Renew | Split]
    messages: list[PendingMessage[Copy]]
    message_ids: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)


class Copies:
    """Sends copies. `submit` may be called from any thread and makes no request.

    Copies of an original that is lost, or will be, are not sent; the other records of an event go on as one
    message, which begins where the sending stopped.

    Args:
        outgoing: makes the requests for records, which may be of any size.
        permissions: of the queues.
        spare: seconds before the deadline of an original at which no further copy is begun.
        window: for how many seconds a batch that is not full waits for more.
        clock: the monotonic clock, and wall time.
        reserve: seconds before the deadline at which nothing is sent any more.
        check: seconds from one look at the deadlines of the originals to the next.
        ended: is called from a thread that sends, when nothing more is sent of a delivery.

    Attributes:
        lane: its lane, to be started; a caller without threads calls its `send_next`.
    """

    def __init__(
        self,
        outgoing: OutgoingMessages,
        permissions: CopyPermissions,
        spare: Callable[[Delivery], float],
        window: float,
        clock: Clock,
        ended: Callable[[Sending], None],
        reserve: float = 0.0,
        check: float = CHECK_SECONDS,
        pump: Pump | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._permissions = permissions
        self._spare = spare
        self._clock = clock
        self._ended = ended
        self._reserve = reserve
        self._check = check
        pump = pump or Pump(clock)
        self.lane: Lane[CopyBatch] = pump.lane("sends copies of messages", MOST_IN_FLIGHT, self)
        self._lock = self.lane.lock  # guards everything below
        self._sendings: dict[Sending, None] = {}
        self._to_end: list[Sending] = []  # nothing more is sent of them
        self._unended = 0  # those of which `ended` has not returned
        self._pending: dict[type[Renew | Split], PendingMessages[Copy]] = {
            kind: PendingMessages(window, give_up=math.inf) for kind in ACTIONS
        }
        self._outages: dict[tuple[Queue, type[Renew | Split]], Outage] = {}
        self._check_at = 0.0
        self._flushing = 0

    def submit(self, delivery: Delivery, copying: Renew | Split) -> None:
        """Send the copies of a delivery that is held until `ended` is called."""
        sending = Sending(delivery, copying)
        with self._lock:
            self._sendings[sending] = None
            self._unended += 1
            self._go_on(sending)
            self.lane.wake()

    def interrupt(self, consumer: Consumer, *kinds: type[Renew | Split]) -> None:
        """The consumer ends: of these kinds begin nothing more, and release what nothing was sent of.

        The records that are left of an event go on as one message.
        """
        with self._lock:
            for sending in list(self._sendings):
                if sending.delivery.consumer is consumer and isinstance(sending.copying, kinds):
                    sending.given_back = True
                    self._stop(sending)
            self.lane.wake()

    def flush(self, timeout: float) -> bool:
        """Send everything now; whether all has ended within `timeout` seconds."""
        with self._lock:
            if not self._unended:
                return True
            self._flushing += 1
            self.lane.wake()
            try:
                return self.lane.wait_until(lambda: not self._unended, timeout)
            finally:
                self._flushing -= 1

    @property
    def unfinished(self) -> bool:
        """Whether anything has not ended."""
        return self._unended > 0

    def due(self, now: float) -> float | None:
        """See `pump.Work`."""
        if not self._unended:
            return None
        if self._to_end or self._is_ready():
            return now
        instants = [at for pending in self._pending.values() if (at := pending.due()) is not None]
        return min([*instants, self._check_at]) if self._sendings else min(instants, default=None)

    def ready(self) -> int:
        """See `pump.Work`."""
        return sum(pending.batches_ready() for pending in self._pending.values()) + 1

    def _is_ready(self) -> bool:
        return any(pending.has_more(flushing=self._flushing > 0) for pending in self._pending.values())

    def take(self, now: float) -> CopyBatch | None:
        """See `pump.Work`."""
        if not self._unended:
            return None
        if now >= self._check_at:
            self._check_at = now + self._check
            self._stop_late(now)
        for kind, pending in self._pending.items():
            if messages := pending.take(now, flushing=self._flushing > 0):
                return CopyBatch(kind, messages)
        return CopyBatch(Split, []) if self._to_end else None

    def send(self, batch: CopyBatch, since: float) -> BatchResult:
        """See `pump.Work`."""
        if not batch.messages:
            return BatchResult({})
        queue, messages = batch.messages[0].queue, [each.message for each in batch.messages]
        self._permissions.require_deletes(queue)
        if (now := self._clock.monotonic()) - since >= self._check:
            self._require_originals(batch, now)
        if batch.kind is Split:
            return self._outgoing.send_batch(queue, messages)
        if len(messages) == 1:
            batch.message_ids[0] = queue.sqs.send(queue.url, messages[0])
            return BatchResult({})
        result = queue.sqs.send_batch(queue.url, messages)
        batch.message_ids.update((i, result.message_id(i)) for i in range(len(messages)))
        return result

    def _require_originals(self, batch: CopyBatch, now: float) -> None:
        """SQS took long to say whether originals can be deleted: nothing is sent of those that are lost."""
        with self._lock:
            self._stop_late(now)
            replaced = all(each.batch is not batch for each in self.lane.in_progress())
            if replaced or any(message.tag.sending.abandoned for message in batch.messages):
                raise AnswerLostError("no answer in time whether the originals can be deleted")

    def conclude(self, batch: CopyBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `pump.Work`."""
        with self._lock:
            if batch.messages:
                self._note(batch, failed)
            to_end, self._to_end = self._to_end, []
        if batch.messages:
            self._log_outage(batch, failed, since)
        for sending in to_end:
            self._end(sending)

    def _note(self, batch: CopyBatch, failed: Mapping[int, SQSError]) -> None:
        for position, message in enumerate(batch.messages):
            if position not in failed:
                message.tag.sending.note_sent(message.tag.place, batch.message_ids.get(position, ""))
        pending = self._pending[batch.kind]
        pending.conclude(batch.messages, failed, self._clock.monotonic())
        self._note_given_up(pending)
        for sending in {message.tag.sending: None for message in batch.messages}:
            if sending.abandoned or sending.given_back:  # meanwhile: what failed is not sent again
                self._stop(sending)
            else:
                self._go_on(sending)
        self.lane.wake()

    def _note_given_up(self, pending: PendingMessages[Copy]) -> None:
        for (sending, index), error in pending.failures:
            sending.note_unsent(index, error if isinstance(error, SQSError) else None)
        pending.failures.clear()

    def _go_on(self, sending: Sending) -> None:
        """Begin further copies; at the end, send the message that stands for those that are left."""
        for index in sending.begin():
            self._add(sending, index)
        while sending.ended and sending in self._sendings:
            remainder = sending.remainder()
            if remainder is not None:
                self._add(sending, REMAINDER, remainder)
            else:
                del self._sendings[sending]
                self._to_end.append(sending)

    def _add(self, sending: Sending, index: int, message: OutgoingMessage | None = None) -> None:
        kind = type(sending.copying)
        pending, offloads = self._pending[kind], self._outgoing.offloads if kind is Split else _never
        try:
            copy = sending.copies[index] if message is None else message
        except UnreadableError as error:
            sending.note_unsent(index, RequestRefusedError(str(error)))
            return
        queue, now = sending.delivery.queue, self._clock.monotonic()
        pending.add(queue, copy, Copy(sending, index), now, offloads)
        self._note_given_up(pending)

    def _stop(self, sending: Sending) -> None:
        """Begin no further copy, and withdraw those that wait for a request."""
        sending.stopping = True
        for copy in self._pending[type(sending.copying)].withdraw(
            lambda copy: copy.sending is sending and (copy.place != REMAINDER or sending.abandoned)
        ):
            sending.note_unsent(copy.place, None)
        self._go_on(sending)

    def _stop_late(self, now: float) -> None:
        """Stop where the original is lost, or will be, as far as is known."""
        for sending in list(self._sendings):
            original = sending.delivery
            sending.abandoned = original.lost or original.deadline <= now + self._reserve
            if sending.abandoned or original.deadline - now <= self._spare(original):
                self._stop(sending)

    def _end(self, sending: Sending) -> None:
        try:
            self._ended(sending)
        except Exception:  # noqa: BLE001 - logged, if that works
            log_safely(logger.exception, "unexpected error after copies of a message were sent; continuing")
        finally:
            with self._lock:
                self._unended -= 1

    def _log_outage(self, batch: CopyBatch, failed: Mapping[int, SQSError], since: float) -> None:
        key = batch.messages[0].queue, batch.kind
        outage = self._outages.get(key)
        if outage is None:
            new = Outage(logger, ACTIONS[batch.kind], key[0].name, self._clock)
            outage = self._outages.setdefault(key, new)
        passing = [error for error in failed.values() if isinstance(error, PASSING_ERRORS)]
        if passing:
            outage.failure(passing[0])
        elif len(failed) < len(batch):
            outage.success(since)


def _never(_queue: Queue, _size: int) -> bool:
    return False


def settlement_of(sending: Sending, permissions: CopyPermissions, rejection: Rejection) -> Settlement | None:
    """Settlement of an original after its last copy; `None` where it can only be held until its ETA.

    A thread that sends. In workers and Lambda functions.
    """
    if not sending.left:
        return Delete(keeps_payload=isinstance(sending.copying, Renew))
    if isinstance(sending.error, REFUSALS):
        if isinstance(sending.copying, Renew):
            return _not_renewed(sending, sending.copying, sending.error, permissions)
        return _not_split(sending, sending.copying, sending.error, rejection)
    return RELEASE if sending.given_back and not sending.sent else Lapse()


def _not_renewed(
    sending: Sending, renew: Renew, error: SQSError, permissions: CopyPermissions
) -> Settlement | None:
    queue = sending.delivery.queue
    if not isinstance(error, DeletesRefusedError) and permissions.refuse_sends(queue):
        log_safely(logger.warning, NOT_SENT, queue.name, error)
    return None if renew.park is None else Hide(renew.park, Why.PARKED)


def _not_split(sending: Sending, split: Split, error: SQSError, rejection: Rejection) -> Settlement:
    delivery = sending.delivery
    if isinstance(error, DeletesRefusedError):
        return rejection.after_an_error(delivery)
    if sending.remainder_tried:
        return Lapse()
    reason = (
        f"its {len(split.copies)} records cannot be sent to queue {delivery.queue.name!r} "
        f"as a message each: {error}"
    )
    return rejection.refusal(delivery, reason, split.body)
