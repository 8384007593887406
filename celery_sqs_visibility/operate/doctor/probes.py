"""Which rights these credentials have on a queue, by requests that change nothing.

Each is one that SQS cannot carry out, by its API reference: a receipt handle that is none, a batch without
entries, a receive of more messages than there may be. A refusal for lack of the right is proof. An entry that
SQS has looked at is proof of the right. A refusal of the whole request proves neither: Amazon does not say
whether SQS looks at the right or at the request first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.data_keys import may_generate_data_key
from celery_sqs_visibility.aws.port import SQS, BatchResult, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError, SQSError
from celery_sqs_visibility.operate.doctor.facts import Right
from celery_sqs_visibility.operate.permission_table import (
    CHANGE_VISIBILITY,
    DECRYPT,
    DELETE,
    GENERATE_DATA_KEY,
    LIST_QUEUES,
    RECEIVE,
    SEND,
)
from celery_sqs_visibility.policy.queue_attributes import key_in
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: No receipt handle looks like it.
NO_HANDLE: Final = "no-receipt-handle"


def rights_on(queue: Queue) -> dict[str, Right]:
    """The rights of workers and producers on the queue."""
    sqs, url = queue.sqs, queue.url
    # Nobody misses what a server brings that does not refuse: it is visible at once.
    too_many, at_once = BATCH_ENTRIES + 1, ReceiveOptions(visibility_timeout=0)
    return {
        RECEIVE: _shown_by(lambda: bool(sqs.receive(url, too_many, 0, at_once))),
        DELETE: _shown_by(lambda: sqs.delete(url, [NO_HANDLE])),
        CHANGE_VISIBILITY: _shown_by(lambda: sqs.change_visibility(url, [(NO_HANDLE, 0)])),
        **rights_on_dead_letters(queue),
    }


def rights_on_dead_letters(queue: Queue) -> dict[str, Right]:
    """The right that a worker has to have there."""
    return {SEND: _shown_by(lambda: queue.sqs.send_batch(queue.url, []))}


def rights_of_control(sqs: SQS, prefix: str) -> dict[str, Right]:
    """The right to find the queues of remote control, whose names begin so. The others take a queue made."""
    return {LIST_QUEUES: _shown_by(lambda: sqs.list_queues(prefix) is not None)}


def rights_on_key(attributes: Mapping[str, str], settings: ClientSettings, region: str) -> dict[str, Right]:
    """The rights on the KMS key of an encrypted queue, if that is not SQS's own."""
    if not (key := key_in(attributes)):
        return {}
    allowed = may_generate_data_key(settings, key, region)
    # A refusal here may be a key policy's that allows it by way of SQS alone.
    return {
        GENERATE_DATA_KEY: Right.ALLOWED if allowed else Right.NOT_KNOWN,
        DECRYPT: Right.NOT_KNOWN,
    }


def _shown_by(probe: Callable[[], BatchResult | bool]) -> Right:
    try:
        answer = probe()
    except AccessDeniedError:
        return Right.DENIED
    except SQSError:
        return Right.NOT_KNOWN
    if not isinstance(answer, BatchResult):
        return Right.ALLOWED
    errors = list(answer.failed.values())
    if any(isinstance(error, AccessDeniedError) for error in errors):
        return Right.DENIED
    return Right.ALLOWED if _looked_at(errors) else Right.NOT_KNOWN


def _looked_at(errors: list[SQSError]) -> bool:
    """Whether SQS has come as far as the receipt handle."""
    return any(isinstance(error, ReceiptHandleInvalidError) for error in errors)
