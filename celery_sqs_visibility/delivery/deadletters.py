"""Messages that are given up: a copy with the reason to the dead-letter queue, before anything is deleted."""

from __future__ import annotations

import logging

from celery_sqs_visibility.aws.errors import AccessDenied, QueueDoesNotExist, RequestRefused
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.model import DeadLetter, Delivery

logger = logging.getLogger(__name__)

#: A FIFO dead-letter queue needs a group, and the original's is not known any more.
FIFO_GROUP = "dead-letters"


class DeadLetters:
    """Sends copies to the dead-letter queues that the queues' redrive policies name."""

    def __init__(self, redrive: RedriveBook) -> None:
        self._redrive = redrive

    def send(self, delivery: Delivery, letter: DeadLetter) -> bool:
        """Send the copy; whether there is a dead-letter queue and it took it. A settler's thread.

        Raises:
            SQSError: it could not be sent now; try again.
        """
        try:
            target = self._redrive.dead_letter_queue(delivery.queue)
            if target is None:
                return False
            target.sqs.send(target.url, _copy(target, delivery, letter))
        except (AccessDenied, QueueDoesNotExist, RequestRefused) as error:
            logger.warning("cannot send to the dead-letter queue of %r: %s", delivery.queue.name, error)
            return False
        return True


def _copy(target: Queue, delivery: Delivery, letter: DeadLetter) -> OutgoingMessage:
    facts = delivery.facts
    texts = {
        "reason": letter.reason,
        "source_queue": facts.queue,
        "message_id": facts.message_id,
        "receive_count": str(facts.receive_count),
        "task": facts.task,
        "task_id": facts.task_id,
        **letter.attributes,
    }
    return OutgoingMessage(
        body=letter.body,
        attributes={
            name: {"DataType": "String", "StringValue": text} for name, text in texts.items() if text
        },
        group_id=FIFO_GROUP if target.fifo else None,
        deduplication_id=facts.message_id if target.fifo else None,
    )
