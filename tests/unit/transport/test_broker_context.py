"""The system attributes are asked for, and a task sees those message attributes that the user asked for."""

from __future__ import annotations

import json

import pytest

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import shared_context
from celery_sqs_visibility.transport.broker_url import BrokerURL

BODY = json.dumps({"body": "", "headers": {"task": "t", "id": "1"}, "properties": {"delivery_info": {}}})
ATTRIBUTES = {name: {"DataType": "String", "StringValue": "x"} for name in ("trace", "tenant.name")}


def broker_context(**given):
    given["region"] = "eu-west-1"
    return shared_context(given, BrokerURL(), Options.parse(given))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, []),
        (["SentTimestamp"], []),
        ({"MessageAttributeNames": ["trace"]}, ["trace"]),
        ({"MessageAttributeNames": ["tenant.*"]}, ["tenant.name"]),
        ({"MessageAttributeNames": ["All"]}, ["trace", "tenant.name"]),
    ],
)
def test_a_task_sees_the_message_attributes_that_were_asked_for(wanted, names):
    context, sqs = broker_context(fetch_message_attributes=wanted), FakeSQS()
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    sqs.send(queue.url, OutgoingMessage(BODY, ATTRIBUTES))
    (message,) = sqs.receive(queue.url, 1, 0, context.receive_options)
    assert message["MessageAttributes"] == ATTRIBUTES
    payload = context.decode_message(queue, message).payload
    seen = payload["properties"]["delivery_info"]["sqs_message"]
    assert list(seen.get("MessageAttributes", {})) == names
    assert seen["MessageId"]


@pytest.mark.parametrize("wanted", ["ALL", ["all"], {"MessageSystemAttributeNames": ["All"]}], ids=repr)
def test_all_system_attributes_are_received_where_all_are_asked_for(wanted):
    asked = broker_context(fetch_message_attributes=wanted).receive_options.system_attributes
    assert asked == ("All",)


def test_a_system_attribute_is_received_with_those_that_are_needed():
    asked = broker_context(fetch_message_attributes="SenderId").receive_options.system_attributes
    assert {"SenderId", "ApproximateReceiveCount", "MessageGroupId", "SentTimestamp"} < set(asked)


def test_a_queue_has_its_own_timeout_and_dead_letter_queue():
    queues = {"reports": {"visibility_timeout": 600, "dead_letter_queue": "reports-dead"}}
    context, sqs = broker_context(queues=queues), FakeSQS()
    context.queues._sqs = sqs
    for name in ("reports", "other"):
        context.queues.find_or_create(name)
    reports, other = map(context.queues.find, ("reports", "other"))
    assert [context.receive_options_of(name).visibility_timeout for name in ("reports", "other")] == [
        600,
        120,
    ]
    assert [
        sqs.queue_attributes(queue.url, ["VisibilityTimeout"])["VisibilityTimeout"]
        for queue in (reports, other)
    ] == ["600", "120"]
    assert context.redrive.dead_letter_queue(reports).name == "reports-dead"
    assert context.redrive.dead_letter_queue(other) is None
    assert not context.redrive.has_dead_letter_queue(other)


def test_connections_with_equal_settings_share_a_context():
    assert broker_context(polling_interval=7) is broker_context(polling_interval=7)
    assert broker_context(polling_interval=7) is not broker_context(polling_interval=8)
