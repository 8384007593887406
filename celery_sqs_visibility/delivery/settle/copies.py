"""What follows from a message, on its way to SQS: in batches, side by side, while the original stays held.

The records of an event, a copy that waits for an ETA, a key or a rate. The original is settled when SQS has
answered for all of them: by then it is in the ledger, where the heartbeat extends it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.batch_threads import BatchThreads
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.publish.pending import PendingMessage, PendingMessages
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.sending import REMAINDER, Sending
from celery_sqs_visibility.delivery.settlements import Renew, Split
from celery_sqs_visibility.errors import PASSING_ERRORS, RequestRefusedError, SQSError, UnreadableError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import Clock

logger = logging.getLogger(__name__)

#: Requests of a worker that are under way together.
COPY_THREADS: Final = 8

#: From one look at the deadlines of the originals to the next.
CHECK_SECONDS: Final = 0.5

#: How the log calls each kind of request when it fails, and when it works again.
ACTIONS: Final[Mapping[type[Renew | Split], str]] = {
    Renew: "send copies of messages with a far ETA",
    Split: "send the records of events as a message each",
}


class Copy(NamedTuple):
    """What a pending message is: a copy of that delivery, at that place among the copies."""

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

    Copies of an original that is lost, or will be, are not sent; what is left of an event goes on as one
    message, which begins where it stopped.

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
        batch_threads: its threads, to be started; or whoever has none calls `send_next`.
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
    ) -> None:
        self._outgoing = outgoing
        self._permissions = permissions
        self._spare = spare
        self._clock = clock
        self._ended = ended
        self._reserve = reserve
        self._check = check
        self.batch_threads: BatchThreads[CopyBatch] = BatchThreads(
            "sqs-copies", "sends copies of messages", COPY_THREADS, self, clock
        )
        self._lock = self.batch_threads.lock  # guards everything below
        self._done = threading.Condition(self._lock)
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
        with self._lock:
            sending = Sending(delivery, copying)
            self._sendings[sending] = None
            self._unended += 1
            self._go_on(sending)
            self.batch_threads.wake()

    def interrupt(self) -> None:
        """The process ends: what is left of events goes on as a message each."""
        with self._lock:
            for sending in [each for each in self._sendings if isinstance(each.copying, Split)]:
                sending.given_back = True
                self._stop(sending)
            self.batch_threads.wake()

    def flush(self, timeout: float) -> bool:
        """Send everything now; whether all has ended within `timeout` seconds."""
        with self._lock:
            self._flushing += 1
            self.batch_threads.wake()
            try:
                return self._done.wait_for(lambda: not self._unended, timeout)
            finally:
                self._flushing -= 1

    @property
    def unfinished(self) -> bool:
        """Whether anything has not ended."""
        return self._unended > 0

    def due(self, now: float) -> float | None:
        """See `batch_threads.Work`."""
        if not self._unended:
            return None
        if self._to_end or self._is_ready():
            return now
        instants = [at for pending in self._pending.values() if (at := pending.due()) is not None]
        return min([*instants, self._check_at]) if self._sendings else min(instants, default=None)

    def ready(self) -> int:
        """See `batch_threads.Work`."""
        return sum(pending.batches_ready() for pending in self._pending.values()) + 1

    def _is_ready(self) -> bool:
        return any(pending.has_more(flushing=self._flushing > 0) for pending in self._pending.values())

    def take(self, now: float) -> CopyBatch | None:
        """See `batch_threads.Work`."""
        if not self._unended:
            return None
        if now >= self._check_at:
            self._check_at = now + self._check
            self._stop_late(now)
        for kind, pending in self._pending.items():
            if messages := pending.take(now, flushing=self._flushing > 0):
                return CopyBatch(kind, messages)
        return CopyBatch(Split, []) if self._to_end else None

    def send(self, batch: CopyBatch, _since: float) -> BatchResult:
        """See `batch_threads.Work`."""
        if not batch.messages:
            return BatchResult({})
        queue, messages = batch.messages[0].queue, [each.message for each in batch.messages]
        self._permissions.require_deletes(queue)
        if batch.kind is Split:
            return self._outgoing.send_batch(queue, messages)
        if len(messages) == 1:
            batch.message_ids[0] = queue.sqs.send(queue.url, messages[0])
            return BatchResult({})
        result = queue.sqs.send_batch(queue.url, messages)
        batch.message_ids.update((i, result.message_id(i)) for i in range(len(messages)))
        return result

    def conclude(self, batch: CopyBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        """See `batch_threads.Work`."""
        with self._lock:
            if batch.messages:
                self._note(batch, failed, since)
            to_end, self._to_end = self._to_end, []
        for sending in to_end:
            self._end(sending)

    def _note(self, batch: CopyBatch, failed: Mapping[int, SQSError], since: float) -> None:
        for position, message in enumerate(batch.messages):
            if position not in failed:
                message.tag.sending.note_sent(message.tag.place, batch.message_ids.get(position, ""))
        pending = self._pending[batch.kind]
        pending.conclude(batch.messages, failed, self._clock.monotonic())
        self._note_given_up(pending)
        self._log_outage(batch, failed, since)
        for sending in {message.tag.sending: None for message in batch.messages}:
            self._go_on(sending)
        self.batch_threads.wake()

    def _note_given_up(self, pending: PendingMessages[Copy]) -> None:
        for (sending, index), error in pending.failures:
            sending.note_unsent(index, error if isinstance(error, SQSError) else None)
        pending.failures.clear()

    def _go_on(self, sending: Sending) -> None:
        """Begin further copies; at the end send what stands for those that are left."""
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
            original = sending.delivery.current
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
                self._done.notify_all()

    def _log_outage(self, batch: CopyBatch, failed: Mapping[int, SQSError], since: float) -> None:
        key = batch.messages[0].queue, batch.kind
        outage = self._outages.get(key)
        if outage is None:
            outage = self._outages[key] = Outage(logger, ACTIONS[batch.kind], key[0].name, self._clock)
        passing = [error for error in failed.values() if isinstance(error, PASSING_ERRORS)]
        if passing:
            outage.failure(passing[0])
        elif len(failed) < len(batch):
            outage.success(since)


def _never(_queue: Queue, _size: int) -> bool:
    return False
