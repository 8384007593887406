"""What is received beyond what the user asked for stays with the delivery, and is not the task's."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import shared_context

BODY = json.dumps({"body": "", "headers": {"task": "t", "id": "1"}, "properties": {"delivery_info": {}}})
ATTRIBUTES = {name: {"DataType": "String", "StringValue": "x"} for name in ("trace", "tenant.name")}


@pytest.fixture
def opened():
    """`opened(fetch_message_attributes)`: what a task sees of a message with two attributes, as received."""

    def opened(wanted):
        given = {"region": "eu-west-1", "fetch_message_attributes": wanted}
        client = SimpleNamespace(
            hostname=None, port=None, userid=None, password=None, transport_options=given
        )
        broker = shared_context(client, Options.parse(given))
        sqs = FakeSQS()
        queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
        sqs.send(queue.url, OutgoingMessage(BODY, ATTRIBUTES))
        (message,) = sqs.receive(queue.url, 1, 0, broker.receive_options)
        assert message["MessageAttributes"] == ATTRIBUTES
        payload = broker.decode_message(queue, message).payload
        return payload["properties"]["delivery_info"]["sqs_message"]

    return opened


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, None),
        (["SentTimestamp"], None),
        ({"MessageAttributeNames": ["trace"]}, ["trace"]),
        ({"MessageAttributeNames": ["tenant.*"]}, ["tenant.name"]),
        ({"MessageAttributeNames": ["All"]}, ["trace", "tenant.name"]),
    ],
)
def test_a_task_sees_the_message_attributes_that_were_asked_for(opened, wanted, names):
    message = opened(wanted)
    assert (list(message["MessageAttributes"]) if names else message.get("MessageAttributes")) == names
    assert message["MessageId"]
