"""How many messages a queue has, as far as SQS tells: approximately, and with a permission of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.errors import AccessDeniedError

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue

#: Messages that a receive may bring, those hidden since a receive, and those delayed since their sending.
VISIBLE: Final = "ApproximateNumberOfMessages"
HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
DELAYED: Final = "ApproximateNumberOfMessagesDelayed"


def count(queue: Queue, *kinds: str) -> int:
    """Ask SQS how many messages of these kinds there are, in all. Any thread.

    Raises:
        AccessDenied: we may not ask; the message names the permission.
        SQSError: SQS could not be asked.
    """
    try:
        attributes = queue.sqs.queue_attributes(queue.url, kinds)
    except AccessDeniedError as error:
        raise AccessDeniedError(
            f"cannot tell how many messages queue {queue.name!r} has: allow sqs:GetQueueAttributes. {error}",
            code=error.code,
            action=error.action,
        ) from error
    return sum(int(attributes[kind]) for kind in kinds)
