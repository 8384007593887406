"""Probes tell a permission that is missing from one that is there, and leave the queue as it is."""

from __future__ import annotations

import pytest
from support.clock import FakeClock
from support.factories import counts, queue, send

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError, UnavailableError
from celery_sqs_visibility.operate.doctor.facts import ProbeResult
from celery_sqs_visibility.operate.doctor.gathering import permissions_on, permissions_on_key
from celery_sqs_visibility.policy.queue_names import AMAZONS_KEY

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
    permissions = permissions_on(probed)
    assert permissions == {
        "sqs:ReceiveMessage": ProbeResult.NOT_KNOWN,
        "sqs:DeleteMessage": ProbeResult.ALLOWED,
        "sqs:ChangeMessageVisibility": ProbeResult.ALLOWED,
        "sqs:SendMessage": ProbeResult.NOT_KNOWN,
    }
    assert counts(probed) == (2, 0)
    assert {message.receive_count for message in sqs._queues[probed.url].messages} == {0}


@pytest.mark.parametrize(("permission", "action"), ACTIONS.items())
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AccessDeniedError("no"), ProbeResult.DENIED),
        (ThrottledError("slow down"), ProbeResult.NOT_KNOWN),
        (UnavailableError("no answer"), ProbeResult.NOT_KNOWN),
    ],
)
def test_a_refusal_is_for_lack_of_the_right_or_tells_nothing(permission, action, error, shown):
    sqs = FakeSQS(FakeClock())
    probed = queue(sqs)
    sqs.fail_next(action, error)
    assert permissions_on(probed)[permission] is shown


@pytest.mark.parametrize("action", ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
@pytest.mark.parametrize(
    ("error", "shown"),
    [(AccessDeniedError("no"), ProbeResult.DENIED), (UnavailableError("?"), ProbeResult.NOT_KNOWN)],
)
def test_so_is_the_refusal_of_an_entry(action, error, shown):
    sqs = FakeSQS(FakeClock())
    probed = queue(sqs)
    sqs.fail_next(action, error, position=0)
    assert shown in permissions_on(probed).values()
    assert list(permissions_on(probed).values()).count(ProbeResult.ALLOWED) == 2


@pytest.mark.parametrize("key", ["", AMAZONS_KEY, f"arn:aws:kms:eu-west-1:123456789012:{AMAZONS_KEY}"])
def test_sqs_own_key_takes_no_right(key):
    assert permissions_on_key({"KmsMasterKeyId": key}, ClientSettings(), "eu-west-1") == {}
