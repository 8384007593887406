from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.operate.app_queues import QueueDepth, queue_depths
from celery_sqs_visibility.operate.queue_metrics import OLDEST, QueueMetrics
from celery_sqs_visibility.policy.options import Options


@pytest.fixture
def sqs():
    return FakeSQS(FakeClock())


def context(sqs, **options):
    return SimpleNamespace(queues=Queues(sqs), redrive=RedriveBook(), options=Options.parse(options))


def test_a_queue_is_counted_with_its_dead_letters(sqs):
    dead = sqs.create_queue("dead", {}, {})
    arn = sqs.queue_attributes(dead, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    url = sqs.create_queue("q", {"RedrivePolicy": policy}, {})
    for delay in (0, 0, 60):
        sqs.send(url, OutgoingMessage("m", delay=delay))
    sqs.send(dead, OutgoingMessage("m"))
    sqs.receive(url, 1, 0, ReceiveOptions(30))
    metrics = QueueMetrics(lambda _queue: FakeCloudWatch({("q", OLDEST): [7.0]}))
    assert queue_depths(context(sqs), ["q", "dead"], metrics) == [
        QueueDepth("q", 1, 1, 1, 7.0, 1),
        QueueDepth("dead", 1, 0, 0, None, None),
    ]


def test_the_queue_of_the_option_is_looked_for_and_not_created(sqs):
    sqs.create_queue("q", {}, {})
    (depth,) = queue_depths(context(sqs, dead_letter_queue="letters"), ["q"])
    assert depth.visible == 0
    assert depth.dead_letters is None
    assert "letters" in str(depth.error)


def test_one_queue_s_error_leaves_the_others(sqs):
    class Forbidding(FakeSQS):
        def queue_attributes(self, queue_url, names):
            raise AccessDeniedError("no")

    sqs.create_queue("q", {}, {})
    there, missing = queue_depths(context(sqs), ["q", "missing"])
    assert there.visible == 0
    assert "missing" in str(missing.error)
    forbidding = Forbidding(FakeClock())
    forbidding.create_queue("q", {}, {})
    (forbidden,) = queue_depths(context(forbidding), ["q"])
    assert "allow sqs:GetQueueAttributes" in str(forbidden.error)


def test_without_queues_nothing_is_asked(sqs):
    assert queue_depths(context(sqs), []) == []
