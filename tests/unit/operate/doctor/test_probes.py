"""Probes tell a right that is missing from one that is there, and leave the queue as it is."""

from __future__ import annotations

import pytest
from support.clock import FakeClock
from support.factories import counts, queue, send

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError, UnavailableError
from celery_sqs_visibility.operate.doctor.facts import Right
from celery_sqs_visibility.operate.doctor.gathering import rights_on, rights_on_key
from celery_sqs_visibility.policy.queue_attributes import AMAZONS_KEY

ACTIONS = {
    "sqs:ReceiveMessage": "ReceiveMessage",
    "sqs:DeleteMessage": "DeleteMessageBatch",
    "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
    "sqs:SendMessage": "SendMessageBatch",
}


def test_what_sqs_has_looked_at_is_allowed_and_the_queue_stays_as_it_is():
    sqs = FakeSQS(FakeClock())
    probed = queue(sqs)
    send(probed, "a", "b")
    rights = rights_on(probed)
    assert rights == {
        "sqs:ReceiveMessage": Right.NOT_KNOWN,
        "sqs:DeleteMessage": Right.ALLOWED,
        "sqs:ChangeMessageVisibility": Right.ALLOWED,
        "sqs:SendMessage": Right.NOT_KNOWN,
    }
    assert counts(probed) == (2, 0)
    assert {message.receive_count for message in sqs._queues[probed.url].messages} == {0}


@pytest.mark.parametrize(("right", "action"), ACTIONS.items())
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AccessDeniedError("no"), Right.DENIED),
        (ThrottledError("slow down"), Right.NOT_KNOWN),
        (UnavailableError("no answer"), Right.NOT_KNOWN),
    ],
)
def test_a_refusal_is_for_lack_of_the_right_or_tells_nothing(right, action, error, shown):
    sqs = FakeSQS(FakeClock())
    probed = queue(sqs)
    sqs.fail_next(action, error)
    assert rights_on(probed)[right] is shown


@pytest.mark.parametrize("action", ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
@pytest.mark.parametrize(
    ("error", "shown"), [(AccessDeniedError("no"), Right.DENIED), (UnavailableError("?"), Right.NOT_KNOWN)]
)
def test_so_is_the_refusal_of_an_entry(action, error, shown):
    sqs = FakeSQS(FakeClock())
    probed = queue(sqs)
    sqs.fail_next(action, error, position=0)
    assert shown in rights_on(probed).values()
    assert list(rights_on(probed).values()).count(Right.ALLOWED) == 2


@pytest.mark.parametrize("key", ["", AMAZONS_KEY, f"arn:aws:kms:eu-west-1:123456789012:{AMAZONS_KEY}"])
def test_sqs_own_key_takes_no_right(key):
    assert rights_on_key({"KmsMasterKeyId": key}, ClientSettings(), "eu-west-1") == {}
