"""A message of several records, with a run for each: the records go on as messages of their own."""

from __future__ import annotations

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settlements import Settlement, Split
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, RequestRefusedError


def send_records(
    outgoing: OutgoingMessages, rejection: Rejection, delivery: Delivery, split: Split
) -> Settlement | None:
    """Send the copies, of any size. A settler's thread.

    Returns:
        How to settle a message whose queue refuses a copy, and will; `None`: all were sent.

    Raises:
        SQSError: one could not be sent now; try again. Those sent before are then sent twice.
    """
    queue = delivery.queue
    try:
        for copy in split.copies:
            outgoing.send(queue, copy)
    except (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError) as error:
        reason = (
            f"its {len(split.copies)} records cannot be sent to queue {queue.name!r} "
            f"as a message each: {error}"
        )
        return rejection.refusal(delivery, reason, split.body)
    return None
