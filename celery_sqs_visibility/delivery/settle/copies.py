"""Requests that send copies of held messages, in parallel batches, while the originals stay held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.core.copies import CopyBatch, DeletesRefusedError, PendingCopies, Sending
from celery_sqs_visibility.core.delivery import Consumer, Delivery
from celery_sqs_visibility.core.settlements import Forward, Hold, Purpose, Settlement
from celery_sqs_visibility.delivery.outage import Outages
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.errors import PASSING_ERRORS, AnswerLostError, SQSError
from celery_sqs_visibility.events import log_safely

logger = logging.getLogger(__name__)

#: Requests of a worker in flight together.
MAX_IN_FLIGHT: Final = 8

#: Names each kind of request in the log when it fails, and when it works again.
ACTIONS: Final[Mapping[Purpose, str]] = {
    Purpose.RENEWAL: "send copies of messages with a far ETA",
    Purpose.RECORDS: "send the records of events as a message each",
    Purpose.DEAD_LETTER: "send dead letters",
}

NOT_SENT: Final = (
    "cannot send to queue %r, so a message whose ETA is far away waits there only as long as the queue's "
    "redrive policy and retention let it; allow sqs:SendMessage: %s"
)


class Copies:
    """The work of the lane that sends copies. The pump's lock guards `pending`.

    Args:
        pending: the copies to send.
        outgoing: makes the requests for records, which may be of any size.
        permissions: of the queues.
        dead_letters: knows where dead letters go.
        ended: called from a thread that sends, when all copies of a delivery are sent or given up.
        pump: of the lane.

    Attributes:
        lane: its lane, to be started; a caller without threads calls its `send_next`.
    """

    def __init__(
        self,
        pending: PendingCopies,
        outgoing: OutgoingMessages,
        permissions: CopyPermissions,
        dead_letters: DeadLetters,
        ended: Callable[[Sending], None],
        pump: Pump,
    ) -> None:
        self.pending = pending
        self.due, self.ready, self.take = pending.due, pending.ready, pending.take
        self._outgoing = outgoing
        self._permissions = permissions
        self._dead_letters = dead_letters
        self._now = pump.now
        self._ended = ended
        self.lane: Lane[CopyBatch] = pump.lane("sends copies of messages", MAX_IN_FLIGHT, self)
        self._outages = Outages(logger, pump.clock)

    def submit(self, delivery: Delivery, forward: Forward) -> None:
        """Send the copies of a delivery, which stays held until `ended` is called. Under the lock."""
        self.pending.add(delivery, forward, self._now())
        self.lane.wake()

    def interrupt(self, consumer: Consumer, *purposes: Purpose) -> None:
        with self.lane.lock:
            self.pending.interrupt(consumer, purposes, self._now())
            self.lane.wake()

    def flush(self, timeout: float) -> bool:
        """Send everything now. Returns whether all has ended within `timeout` seconds."""
        return self.lane.flush(self.pending, timeout)

    def send(self, batch: CopyBatch, since: float) -> BatchResult:
        if not batch.messages:
            return BatchResult({})
        queue, messages = batch.messages[0].queue, [each.message for each in batch.messages]
        target = queue
        if batch.purpose is Purpose.DEAD_LETTER:
            target, messages = self._dead_letters.addressed(queue, messages)
        self._permissions.require_deletes(queue)
        if (now := self._now()) - since >= self.pending.check:
            self._require_originals(batch, now)
        if batch.purpose is Purpose.RECORDS:
            return self._outgoing.send_batch(queue, messages)
        if len(messages) == 1:
            batch.message_ids[0] = target.sqs.send(target.url, messages[0])
            return BatchResult({})
        result = target.sqs.send_batch(target.url, messages)
        batch.message_ids.update((i, result.message_id(i)) for i in range(len(messages)))
        return result

    def _require_originals(self, batch: CopyBatch, now: float) -> None:
        """After a slow check of the permission to delete, stop copies whose originals are lost meanwhile."""
        with self.lane.lock:
            self.pending.stop_late(now)
            replaced = all(each.batch is not batch for each in self.lane.in_progress())
            if replaced or any(message.tag.sending.abandoned for message in batch.messages):
                raise AnswerLostError("no answer in time whether the originals can be deleted")

    def conclude(self, batch: CopyBatch, since: float, failed: Mapping[int, SQSError]) -> None:
        with self.lane.lock:
            ended = self.pending.answered(batch, failed, self._now())
            self.lane.wake()
        if batch.messages and (failed or self._outages):
            passing = (error for error in failed.values() if isinstance(error, PASSING_ERRORS))
            action, queue = ACTIONS[batch.purpose], batch.messages[0].queue.name
            self._outages.note(action, queue, next(passing, None), since, worked=len(failed) < len(batch))
        for sending in ended:
            self._end(sending)

    def _end(self, sending: Sending) -> None:
        try:
            self._ended(sending)
        except Exception:  # noqa: BLE001 - logged, if that works
            log_safely(logger.exception, "unexpected error after copies of a message were sent; continuing")
        finally:
            with self.lane.lock:
                self.pending.unfinished -= 1

    def settlement(self, sending: Sending) -> Settlement | Hold:
        """How to settle the original. Remembers what its queue refused. A thread that sends."""
        queue, refusal = sending.delivery.queue, sending.refusal
        refused = refusal is not None and not isinstance(refusal, DeletesRefusedError)
        match sending.forward.purpose:
            case Purpose.RENEWAL if refused and self._permissions.note_sends_refused(queue):
                log_safely(logger.warning, NOT_SENT, queue.name, refusal)
            case Purpose.DEAD_LETTER if refused or sending.sent:
                self._dead_letters.note(queue, refusal)
        return sending.settlement()
