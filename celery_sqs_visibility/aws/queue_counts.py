"""Numbers of messages in a queue: approximate, and with a permission of their own."""

from __future__ import annotations

from typing import Final

from celery_sqs_visibility.aws.error_codes import reworded
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError

#: Messages that a receive may bring, those hidden since a receive, and those delayed since their sending.
VISIBLE: Final = "ApproximateNumberOfMessages"
HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
DELAYED: Final = "ApproximateNumberOfMessagesDelayed"


def count(queue: Queue, *kinds: str) -> int:
    """Ask SQS for the number of messages of these kinds together. Raises as `counts`."""
    return sum(counts(queue, *kinds))


def counts(queue: Queue, *kinds: str) -> list[int]:
    """Ask SQS for the number of messages of each of these kinds. Any thread.

    Raises:
        AccessDeniedError: we may not ask; the message names the permission.
        SQSError: SQS could not be asked.
    """
    try:
        attributes = queue.sqs.queue_attributes(queue.url, kinds)
    except AccessDeniedError as error:
        sentence = (
            f"cannot tell how many messages queue {queue.name!r} has: allow sqs:GetQueueAttributes. {error}"
        )
        raise reworded(error, sentence) from error
    return [int(attributes[kind]) for kind in kinds]
