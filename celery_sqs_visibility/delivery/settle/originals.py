"""What becomes of an original once nothing more is sent of its copies. In workers and Lambda functions."""

from __future__ import annotations

import logging
from typing import Final

from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions, DeletesRefusedError
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.delivery.settle.sending import Sending
from celery_sqs_visibility.delivery.settlements import Delete, Lapse, Park, Release, Renew, Settlement, Split
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.events import log_safely

logger = logging.getLogger(__name__)

#: Errors of a copy that no later try mends.
REFUSALS: Final = (AccessDeniedError, QueueDoesNotExistError, RequestRefusedError)

NOT_SENT: Final = (
    "cannot send to queue %r, so a message whose ETA is far away waits there only as long as the queue's "
    "redrive policy and retention let it; allow sqs:SendMessage: %s"
)


def settlement_of(sending: Sending, permissions: CopyPermissions, rejection: Rejection) -> Settlement | None:
    """How the original is settled; `None` where it can only be held until its ETA. A thread that sends."""
    if not sending.left:
        return Delete()
    if isinstance(sending.error, REFUSALS):
        if isinstance(sending.copying, Renew):
            return _not_renewed(sending, sending.copying, sending.error, permissions)
        return _not_split(sending, sending.copying, sending.error, rejection)
    return Release() if sending.given_back and not sending.sent else Lapse()


def _not_renewed(
    sending: Sending, renew: Renew, error: SQSError, permissions: CopyPermissions
) -> Settlement | None:
    queue = sending.delivery.queue
    if not isinstance(error, DeletesRefusedError) and permissions.refuse_sends(queue):
        log_safely(logger.warning, NOT_SENT, queue.name, error)
    return None if renew.park is None else Park(renew.park)


def _not_split(sending: Sending, split: Split, error: SQSError, rejection: Rejection) -> Settlement:
    delivery = sending.delivery.current
    if isinstance(error, DeletesRefusedError):
        return rejection.after_an_error(delivery)
    if sending.remainder_tried:
        return Lapse()
    reason = (
        f"its {len(split.copies)} records cannot be sent to queue {delivery.queue.name!r} "
        f"as a message each: {error}"
    )
    return rejection.refusal(delivery, reason, split.body)
