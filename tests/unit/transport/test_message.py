"""What a message asks of its delivery."""

import base64
import bz2
import json
from types import SimpleNamespace

import pytest
from kombu.transport import virtual

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.message import Message, QoS

QUEUE = Queue("q", "https://sqs.example/1/q", FakeSQS())


class RecordingDelivery:
    """Keeps what it is asked; says that the task may wait."""

    def __init__(self):
        self.asked = []
        self.pointer = None

    def give_up(self, reason, body, when_exhausted=None, **attributes):
        self.asked.append(("give up", reason, decoded(body())["body"], when_exhausted, attributes))

    def refuse(self, reason, body, *, others_may=False):
        self.asked.append(("refuse", reason, decoded(body)["body"], others_may))

    def renewal(self, eta, copied, otherwise):
        body, attributes = copied(SimpleNamespace(message_attributes={"a": 1}))
        self.asked.append(("renewal", eta, decoded(body)["headers"], attributes, otherwise))
        return "a renewal"


def decoded(body):
    return decode_message(QUEUE, {"ReceiptHandle": "tag", "Body": body}).payload


def message_of(delivery, **headers):
    payload = {"body": "[]", "headers": headers, "properties": {}}
    channel = SimpleNamespace(decode_body=lambda body, _encoding: body)
    body = base64.b64encode(json.dumps(payload).encode()).decode()
    return Message(decoded(body), channel, delivery=delivery)


@pytest.mark.parametrize("given", [{}, {"headers": None}, {"content-encoding": "binary"}])
def test_a_message_is_as_kombu_makes_it(given):
    info = {"exchange": "", "routing_key": "q"}
    properties = {"body_encoding": "base64", "delivery_tag": "tag", "delivery_info": info, "priority": 0}
    parts = {"content-type": "application/json", "content-encoding": "utf-8", "headers": {"task": "t"}}
    payload = {"body": base64.b64encode(b"[[], {}, {}]").decode(), "properties": properties, **parts, **given}
    channel = SimpleNamespace(decode_body=lambda body, _encoding: base64.b64decode(body))
    ours, theirs = Message(payload, channel), virtual.Message(payload, channel=channel)
    names = {*virtual.Message.__mro__[1].__slots__, *vars(theirs)} - {"__dict__"}
    assert {name: getattr(ours, name) for name in names} == {name: getattr(theirs, name) for name in names}


def test_a_delivery_is_given_up_and_refused_with_the_body_as_it_was_sent():
    delivery = RecordingDelivery()
    message = message_of(delivery, task="t")
    message.give_up("it failed", "keep", exception="E")
    assert not message.acknowledged
    message.refuse("no task", others_may=True)
    assert message.acknowledged
    assert delivery.asked == [
        ("give up", "it failed", "[]", "keep", {"exception": "E"}),
        ("refuse", "no task", "[]", True),
    ]


def test_a_renewed_message_has_the_eta_and_the_retries_in_its_headers():
    delivery = RecordingDelivery()
    assert message_of(delivery, task="t").renewal(0.0, 2) == "a renewal"
    assert message_of(delivery, task="t").renewal(0.0, 2, Hide(5)) == "a renewal"
    headers = {"task": "t", "eta": "1970-01-01T00:00:00+00:00", "retries": 2}
    first, second = delivery.asked
    assert second == ("renewal", 0.0, headers, {"a": 1}, Hide(5))
    *_, hold = first
    assert (first[:-1], hold.payload["headers"]) == (second[:-1], {"task": "t"}), "else Celery holds it"


def test_a_message_that_has_its_eta_in_the_body_is_not_renewed():
    assert message_of(RecordingDelivery()).renewal(0.0, 2) is None


def test_a_fetched_message_has_no_delivery_and_nothing_is_asked():
    message = message_of(None)
    message.give_up("it failed")
    message.refuse("no task")
    message.come_back(ValueError())
    assert message.renewal(0.0, 0) is None
    assert not message.acknowledged
    assert not message.is_broadcast


@pytest.mark.parametrize("set_by_consumer", [False, True])
def test_a_prefetch_count_is_ten_more_than_the_unsettled_messages_of_a_consumer_that_sets_none(
    set_by_consumer,
):
    held = {"a": 1, "b": 2}
    qos = QoS(SimpleNamespace(delivery=held.get))
    qos.set_by_consumer = set_by_consumer
    assert qos.raised_prefetch_count() == 10
    for tag in "ab":
        qos.append(message_of(RecordingDelivery()), tag)
    qos.append(message_of(None), "fetched")
    assert qos.raised_prefetch_count() == (10 if set_by_consumer else 12)
    del held["a"]
    assert qos.raised_prefetch_count() == (10 if set_by_consumer else 11)


def test_a_message_whose_payload_is_in_s3_is_copied_as_its_pointer_and_gets_no_other_eta():
    bodies = []
    delivery = SimpleNamespace(
        pointer=PayloadPointer("bucket", "key", "a pointer"),
        give_up=lambda _reason, body, _on_exhausted: bodies.append(body()),
        refuse=lambda _reason, body, *, others_may: bodies.append(body),
    )
    message = message_of(delivery, task="t")
    message.give_up("it failed")
    message.refuse("no task")
    assert bodies == ["a pointer", "a pointer"]
    assert message.renewal(0.0, 2) is None


def test_a_body_is_not_inflated_by_the_content_encoding_that_its_sender_names():
    channel = SimpleNamespace(decode_body=lambda body, _encoding: body)
    payload = {"body": bz2.compress(b"x" * 1000), "headers": {}, "properties": {"delivery_tag": "tag"}}
    message = Message({**payload, "content-type": "application/data", "content-encoding": "bz2"}, channel)
    message.accept = {"application/json"}
    with pytest.raises(TooLargeError, match="its content encoding is 'bz2'"):
        message.decode()
