"""The known permissions of a queue count until SQS says otherwise."""

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.redrive import REDRIVE_SECONDS
from celery_sqs_visibility.core.copies import DeletesRefusedError
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.errors import AccessDeniedError

DENIED = AccessDeniedError("allow sqs:DeleteMessage")


def test_where_deletes_are_refused_now_it_does_not_count_that_one_was_taken_before():
    clock = FakeClock()
    sqs = FakeSQS(clock)
    queue = factories.queue(sqs)
    permissions = CopyPermissions(clock)
    permissions.note_deleted(queue)
    permissions.require_deletes(queue)
    permissions.note_deletes_refused(queue, DENIED)
    with pytest.raises(DeletesRefusedError, match="queue 'q' cannot be deleted"):
        permissions.require_deletes(queue)
    assert "DeleteMessageBatch" not in [action for action, _ in sqs.calls], "SQS has said so"
    clock.advance(REDRIVE_SECONDS + 1)
    permissions.require_deletes(queue)
    assert "DeleteMessageBatch" in [action for action, _ in sqs.calls], "SQS is asked anew"
