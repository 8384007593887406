"""Messages that won't be done: failed for good, rejected, or not a task for this worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Final, Protocol

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.held import Past
from celery_sqs_visibility.core.settlements import (
    RELEASE,
    Delete,
    Direct,
    Forward,
    Hide,
    Lapse,
    Settlement,
    Why,
)
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.receive.content import loggable
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.events import Unreadable, emit, log_safely
from celery_sqs_visibility.policy.options import OptionsOfQueue
from celery_sqs_visibility.policy.retries import is_permanently_unreadable, whole_seconds

logger = logging.getLogger(__name__)

#: The value of the option `when_exhausted` other than "keep".
DELETE: Final = "delete"

DELETED: Final = (
    "message deleted for good without a dead-letter queue; give its queue one, or set when_exhausted to "
    "'keep' (%s)"
)
NO_TASK_DELETED: Final = (
    "message is no task and is deleted, for its FIFO group waits behind it and there is no dead-letter queue "
    "(%s)"
)

COMES_BACK: Final = "message cannot be read or run here for now, and comes back (%s)"

#: How long to hide a message that may not be deleted, or that SQS's redrive policy would move at its next
#: receive: each return costs two requests.
KEPT_SECONDS: Final = 3600


class Memory(Protocol):
    """Remembers messages that this process no longer holds. Any thread."""

    def remember(self, past: Past, delivery: Delivery) -> bool:
        """Remember this end of the message. Returns whether it is new."""

    def remembers(self, past: Past, delivery: Delivery) -> bool:
        """Whether the message had that end before."""


class Rejection:
    """Decides how to settle deliveries that won't be done. Any thread; no I/O.

    `options_of` returns the options of a queue: `error_visibility_timeout` and `when_exhausted` are used.
    """

    def __init__(
        self, redrive: RedriveBook, options_of: OptionsOfQueue, memory: Memory, letters: DeadLetters
    ) -> None:
        self._redrive = redrive
        self._letters = letters
        self._options_of = options_of
        self._memory = memory

    def give_up(
        self,
        delivery: Delivery,
        reason: str,
        body: Callable[[], str],
        when_exhausted: str | None = None,
        **attributes: str,
    ) -> None:
        """Give up a message whose task failed for good: to the dead-letter queue, if any, then deleted.

        `body` makes the body of the dead letter. `when_exhausted` is the task's own, and overrides the
        queue's. `attributes` are further texts of the dead letter.
        """
        is_new = self._memory.remember(Past.GIVEN_UP, delivery)
        delivery.end_of_given_up = "failed" if is_new else "released"
        if self._redrive.has_dead_letter_queue(delivery.queue):
            otherwise = self._not_taken(delivery)
            delivery.settle(
                self._letters.forward(delivery, reason, body(), lambda _error: otherwise, attributes)
            )
        else:
            self._settle_without_dead_letters(delivery, reason, when_exhausted)

    def gave_up(self, delivery: Delivery) -> bool:
        """Whether the message was given up before."""
        return self._memory.remembers(Past.GIVEN_UP, delivery)

    def kept(self, delivery: Delivery) -> bool:
        """Whether this process has settled the message before without deleting it."""
        return self._memory.remembers(Past.KEPT, delivery)

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        """Release it if `requeue`, otherwise give it up.

        A message that is given up is left to the queue's redrive policy, or deleted if there is none. This is
        what kombu's SQS transport does since 5.7, and AMQP without a dead-letter exchange.
        """
        if requeue:
            delivery.settle(RELEASE)
        else:
            when_exhausted = self._options_of(delivery.queue.name).when_exhausted
            self._settle_given_up(
                delivery, rejected(self._redrive, delivery.queue, when_exhausted), "rejected"
            )

    def refuse(self, delivery: Delivery, reason: str, body: str, *, others_may: bool = False) -> bool:
        """Refuse a message that is not a task for this worker: it becomes a dead letter, or is hidden.

        With `others_may`, other workers may know the task, as in a rolling deploy, so it becomes a dead
        letter only at the last receive that the queue allows. In a FIFO queue its group waits behind it, so
        it is given up after a few receives.

        Returns:
            Whether this is the first refusal of the message, as far as is known.
        """
        first = self._memory.remember(Past.REJECTED, delivery)
        settlement = self.refusal(delivery, reason, body, others_may=others_may)
        if first:
            emit(Unreadable(delivery.facts, loggable(reason), self._what_follows(delivery.queue, settlement)))
        delivery.settle(settlement)
        return first

    def _what_follows(self, queue: Queue, settlement: Settlement) -> str:
        """What will happen to a refused message, for the log."""
        if isinstance(settlement, Forward):
            return "it becomes a dead letter"
        if isinstance(settlement, Delete):
            return "it is deleted"
        if (policy := self._redrive.peek(queue)) is not None:
            return f"it comes back, and at receive {policy.max_receive_count} it becomes a dead letter"
        return "it comes back, until the retention of its queue ends"

    def refusal(self, delivery: Delivery, reason: str, body: str, *, others_may: bool = False) -> Settlement:
        """The settlement with which `refuse` refuses a message."""
        facts, reason = delivery.facts, loggable(reason)
        hidden = self.after_an_error(delivery)
        seconds_known = facts.received - facts.first_received if facts.first_received else 0.0
        if delivery.queue.fifo and is_permanently_unreadable(
            facts.receive_count, seconds_known, others_may=others_may
        ):
            return self._letter_or(self._free_group(delivery, reason), delivery, reason, body)
        if others_may and delivery.may_return:
            return hidden
        return self._letter_or(hidden, delivery, reason, body)

    def _letter_or(self, otherwise: Direct, delivery: Delivery, reason: str, body: str) -> Settlement:
        """A dead letter if the queue has a dead-letter queue; otherwise `otherwise`."""
        if not self._redrive.has_dead_letter_queue(delivery.queue):
            return otherwise
        return self._letters.forward(delivery, reason, body, lambda _error: otherwise)

    def after_an_error(self, delivery: Delivery) -> Direct:
        """How to settle a failure for which the task chose no delay."""
        retries = max(0, delivery.facts.receive_count - 1 - delivery.parkings)
        rule = self._options_of(delivery.queue.name).error_visibility_timeout
        try:
            delay = rule(retries, UnreadableError()) if rule else None
        except Exception:
            logger.exception("error_visibility_timeout failed; the message comes back at its own time")
            delay = None
        return Lapse() if delay is None else Hide(whole_seconds(delay))

    def come_back(self, delivery: Delivery, error: BaseException) -> None:
        """Let the message come back, because it can't be read or run here now through no fault of its own.

        It comes back late if SQS's redrive policy would move it at its next receive.
        """
        may_return = delivery.may_return
        delivery.settle(self.after_an_error(delivery) if may_return else Hide(KEPT_SECONDS))
        _log(logging.WARNING, COMES_BACK, delivery, repr(error))

    def _free_group(self, delivery: Delivery, reason: str) -> Direct:
        """How to settle the head of a FIFO group that no dead-letter queue accepts."""
        if self._redrive.has_dead_letter_queue(delivery.queue):
            return self._not_taken(delivery)
        settlement = self._without_dead_letters(delivery.queue)
        if isinstance(settlement, Delete):
            _log(logging.ERROR, NO_TASK_DELETED, delivery, reason)
        return settlement

    def _settle_without_dead_letters(
        self, delivery: Delivery, reason: str, when_exhausted: str | None = None
    ) -> None:
        self._settle_given_up(delivery, self._without_dead_letters(delivery.queue, when_exhausted), reason)

    def _settle_given_up(self, delivery: Delivery, settlement: Direct, reason: str) -> None:
        if delivery.settle(settlement) and isinstance(settlement, Delete):
            _log(logging.WARNING, DELETED, delivery, reason)

    def _without_dead_letters(self, queue: Queue, when_exhausted: str | None = None) -> Direct:
        when_exhausted = when_exhausted or self._options_of(queue.name).when_exhausted
        return without_dead_letters(self._redrive, queue, when_exhausted)

    def _not_taken(self, delivery: Delivery) -> Direct:
        """How to settle a message that its dead-letter queue refuses.

        It is made visible at once, until the redrive policy's receives are used up and SQS moves it. If it
        still comes back after that, for example because the dead-letter queue is gone, it is kept.
        """
        policy = self._redrive.peek(delivery.queue)
        if policy is not None and delivery.facts.receive_count <= policy.max_receive_count:
            return RELEASE
        return _kept(self._redrive, delivery.queue)


def rejected(redrive: RedriveBook, queue: Queue, when_exhausted: str) -> Direct:
    """How to settle a message rejected without requeue. `redrive` has read the queue's policy."""
    if redrive.has_dead_letter_queue(queue):
        return Lapse()
    return without_dead_letters(redrive, queue, when_exhausted)


def without_dead_letters(redrive: RedriveBook, queue: Queue, when_exhausted: str) -> Direct:
    """How to give up a message of a queue that has no dead-letter queue, as far as is known."""
    if when_exhausted == DELETE and redrive.knows(queue):
        return Delete()
    return _kept(redrive, queue)


def _kept(redrive: RedriveBook, queue: Queue) -> Hide | Lapse:
    """Hide it for long, not to be run; if there may be a redrive policy, let its timeout run out."""
    return Hide(KEPT_SECONDS, Why.KEPT) if redrive.knows(queue) else Lapse()


def _log(level: int, sentence: str, delivery: Delivery, reason: str) -> None:
    fields = Fields({**asdict(delivery.facts), "reason": reason})
    log_safely(partial(logger.log, level), sentence, fields, extra={"sqs": fields})
