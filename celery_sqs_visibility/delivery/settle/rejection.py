"""What becomes of messages that fail for good, are rejected, or are no tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.model import (
    DeadLetter,
    Delete,
    Delivery,
    Hide,
    Lapse,
    Release,
    Settlement,
)
from celery_sqs_visibility.delivery.receive.decoder import Decoder, legible
from celery_sqs_visibility.delivery.recent_keys import RecentKeys
from celery_sqs_visibility.delivery.settle.dead_letters import not_taken, without_dead_letters
from celery_sqs_visibility.policy.attempts import is_no_task_for_good
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

logger = logging.getLogger(__name__)

#: Queues and ids of messages given up. A message that is kept comes back within 12 hours, each time.
_given_up: RecentKeys[tuple[str, str]] = RecentKeys(100_000, VISIBILITY_HORIZON)


class Rejection:
    """Settles what will not be done. Any thread; does no I/O itself.

    Args:
        redrive: knows the dead-letter queues.
        decoder: knows what nobody can read, and how long it is hidden.
        on_exhausted: "delete" or "keep": what to do without a dead-letter queue.
    """

    def __init__(self, redrive: RedriveBook, decoder: Decoder, on_exhausted: str) -> None:
        self._redrive = redrive
        self._decoder = decoder
        self._on_exhausted = on_exhausted

    def give_up(
        self,
        delivery: Delivery,
        reason: str,
        body: Callable[[], str],
        on_exhausted: str | None = None,
        **attributes: str,
    ) -> None:
        """Its task failed for good: to the queue's dead-letter queue if it has one, then deleted.

        Args:
            delivery: what is given up.
            reason: for whoever reads the dead letters.
            body: makes the message's body, which is not kept.
            on_exhausted: what to do without a dead-letter queue, if not as the option says.
            attributes: what else to tell.
        """
        delivery = delivery.current  # whose receive count is SQS's
        _given_up.add((delivery.queue.url, delivery.facts.message_id))
        if self._redrive.has_dead_letter_queue(delivery.queue):
            otherwise = not_taken(self._redrive, delivery)
            delivery.settle(DeadLetter(reason, body(), otherwise, attributes))
        else:
            delivery.settle(self._without_dead_letters(delivery.queue, on_exhausted))

    def gave_up(self, delivery: Delivery) -> bool:
        """Whether its message was given up before."""
        return (delivery.queue.url, delivery.facts.message_id) in _given_up

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        """Give it back at once, or give it up.

        Given up, it is left to the queue's redrive policy or, without one, deleted: as kombu's SQS transport
        does since 5.7, and as AMQP does without a dead-letter exchange.
        """
        if requeue:
            delivery.settle(Release())
        elif self._redrive.has_dead_letter_queue(delivery.queue):
            delivery.settle(Lapse())
        else:
            delivery.settle(self._without_dead_letters(delivery.queue))

    def refuse(self, delivery: Delivery, reason: str, body: str, *, others_may: bool = False) -> None:
        """No task of this worker can be made of it: a dead letter, or hidden.

        In a FIFO queue its group waits behind it: there it is given up after a while, like a task that failed
        for good.

        Args:
            delivery: what is refused.
            reason: for whoever reads the log or the dead letters.
            body: the message's.
            others_may: whether another worker may know better, as in a rolling deploy: then it is a dead
                letter only at the last receive that the queue allows.
        """
        delivery = delivery.current
        facts = delivery.facts
        known = facts.received - facts.first_received if facts.first_received else 0.0
        if delivery.queue.fifo and is_no_task_for_good(facts.receive_count, known, others_may=others_may):
            self._decoder.refuse(delivery, reason, body, otherwise=self._let_group_go_on(delivery, reason))
        else:
            self._decoder.refuse(delivery, reason, body, wait=others_may and self.may_return(delivery))

    def _let_group_go_on(self, delivery: Delivery, reason: str) -> Settlement:
        """What becomes of it where no dead-letter queue takes it."""
        if self._redrive.has_dead_letter_queue(delivery.queue):
            return not_taken(self._redrive, delivery)
        settlement = self._without_dead_letters(delivery.queue)
        if isinstance(settlement, Delete):
            facts = delivery.facts
            told = Fields(
                queue=facts.queue,
                message_id=facts.message_id,
                group=facts.group,
                receive_count=facts.receive_count,
                reason=legible(reason),
            )
            logger.error(
                "message is no task and is deleted, for its FIFO group waits behind it and there is no "
                "dead-letter queue (%s)",
                told,
                extra={"sqs": told},
            )
        return settlement

    def after_an_error(self, delivery: Delivery) -> Hide | Lapse:
        """How to settle a failure about which the task says nothing."""
        return self._decoder.as_after_an_error(delivery.current)

    def may_return(self, delivery: Delivery) -> bool:
        """Whether SQS would hand it out again, instead of moving it to the dead-letter queue."""
        redrive = self._redrive.peek(delivery.queue)
        return redrive is None or delivery.facts.receive_count < redrive.max_receive_count

    def _without_dead_letters(self, queue: Queue, on_exhausted: str | None = None) -> Settlement:
        return without_dead_letters(self._redrive, queue, on_exhausted or self._on_exhausted)
