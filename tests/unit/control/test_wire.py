"""JSON, and nothing else, is read."""

import json

import pytest
from kombu.serialization import dumps as dump_content

from celery_sqs_visibility.control import wire
from celery_sqs_visibility.errors import TooLargeError, UnreadableError
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

TIMES = {"ApproximateFirstReceiveTimestamp": "5000", "SentTimestamp": "2000"}


def message(body, serializer="json", **headers):
    kind, encoding, text = dump_content(body, serializer)
    return {"body": text, "content-type": kind, "content-encoding": encoding, "headers": headers}


def received(text):
    return {"Body": text, "MessageId": "m", "Attributes": TIMES}


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_whatever_the_serializer_json_goes_out(serializer):
    pytest.importorskip("yaml")
    sent = message({"method": "ping", "arguments": {"n": [1, None]}}, serializer, clock=3, compression="zlib")
    body = wire.body_of(sent)
    text = wire.encode(sent, body, "x.pidbox", "key", message_id="id", expires_in=10.0)
    decoded = wire.decode(received(text))
    assert json.loads(decoded.payload["body"]) == {"method": "ping", "arguments": {"n": [1, None]}}
    assert decoded.payload["headers"] == {"clock": 3}
    assert (decoded.id, decoded.routing_key, decoded.expires_in) == ("id", "key", 7.0)


@pytest.mark.parametrize(
    "sent", [None, 1, "text", [], [{}], {}, {"body": "{}"}, {"properties": [], "headers": {}}]
)
def test_what_is_no_message_of_ours_is_refused(sent):
    with pytest.raises(UnreadableError):
        wire.decode(received(json.dumps(sent)))


@pytest.mark.parametrize(
    "change",
    [
        {"content-type": "application/x-python-serialize"},
        {"body": "not JSON"},
        {"body": "1"},
        {"headers": None},
        {"properties": {}},
        {"properties": {"delivery_info": {"routing_key": ""}, "expires_in": "soon"}},
    ],
)
def test_a_message_of_another_form_is_refused(change):
    sent = message({"method": "ping"})
    text = json.dumps({**json.loads(wire.encode(sent, {}, "x.pidbox", "", message_id="id")), **change})
    with pytest.raises(UnreadableError):
        wire.decode(received(text))


def test_what_sqs_does_not_take_is_not_sent():
    with pytest.raises(TooLargeError, match="a message in SQS may have"):
        wire.encode(message({}), {"a": "x" * MESSAGE_BYTES}, "x.pidbox", "", message_id="id")


@pytest.mark.parametrize(
    "reply_to",
    [
        {"exchange": "", "routing_key": "payroll"},
        {"exchange": "payroll", "routing_key": "payroll"},
        {"exchange": "celery.pidbox", "routing_key": "0a1b2c3d-0123456789ab.key"},
        {"exchange": "reply.celery.pidbox", "routing_key": "payroll"},
        {"exchange": "reply.celery.pidbox", "routing_key": 5},
        {"exchange": ["reply.celery.pidbox"], "routing_key": "0a1b2c3d-0123456789ab.key"},
        {"routing_key": "0a1b2c3d-0123456789ab.key"},
        "payroll",
        ["payroll"],
    ],
)
def test_replies_go_to_queues_for_replies_only(reply_to):
    command = json.dumps({"method": "ping", "ticket": "t", "reply_to": reply_to})
    received = {"Body": wire.envelope(command, {}, "celery.pidbox", ""), "MessageId": "m", "Attributes": {}}
    with pytest.raises(UnreadableError):
        wire.decode(received, "reply.celery.pidbox")
    own = {"exchange": "reply.celery.pidbox", "routing_key": "0a1b2c3d-0123456789ab.key"}
    for accepted in (own, None):
        command = json.dumps({"method": "ping", "reply_to": accepted})
        body = wire.envelope(command, {}, "celery.pidbox", "")
        assert wire.decode({**received, "Body": body}, "reply.celery.pidbox")
