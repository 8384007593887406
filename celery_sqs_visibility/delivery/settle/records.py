"""A message of several records, with a run for each: the records go on as messages of their own."""

from __future__ import annotations

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.settlements import Split
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    UnreadableError,
)


def send_records(outgoing: OutgoingMessages, queue: Queue, split: Split) -> None:
    """Send the copies, of any size. A settler's thread.

    Raises:
        UnreadableError: the queue refuses one, and will.
        SQSError: one could not be sent now; try again. Those sent before are then sent twice.
    """
    try:
        for copy in split.copies:
            outgoing.send(queue, copy)
    except (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError) as error:
        raise UnreadableError(
            f"its {len(split.copies)} records cannot be sent to queue {queue.name!r} "
            f"as a message each: {error}"
        ) from error
