"""Messages that are not Celery's become tasks, or stay what they are: bad messages."""

from __future__ import annotations

import json
import logging

import pytest
from support.aws_events import S3_TEST, eventbridge, s3_notification, s3_record, sns
from support.badmessages import encoded, envelope
from support.factories import sqs_queue

from celery_sqs_visibility import message as task_message
from celery_sqs_visibility import task_id_for
from celery_sqs_visibility.delivery.settlements import Delete, Split
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.payload_pointers import size_attribute
from celery_sqs_visibility.transport.codec import OWN_BODY, decode_message, encode_payload
from celery_sqs_visibility.transport.event_messages import EventMessages

QUEUE, FIFO = sqs_queue(), sqs_queue("q.fifo")
CREATED, REMOVED = s3_record(), s3_record(event="ObjectRemoved:Delete")
BRIDGE, NOTICE = eventbridge(), sns("an order was placed")

ROUTES = EventRoutes(
    [
        EventRoute("s3:ObjectCreated:*", "imports"),
        EventRoute("s3:ObjectRemoved:*", "audits", per_message=True),
        EventRoute("aws.s3/*", "bridged"),
        EventRoute("sns:uploads", "noticed"),
    ]
)


def received(body, **attributes):
    text = body if isinstance(body, str) else json.dumps(body)
    return {"MessageId": "m1", "ReceiptHandle": "h1", "Body": text, "Attributes": attributes}


def decode(body, adapter=None, queue=QUEUE, routes=ROUTES, **attributes):
    return EventMessages(routes, adapter).decode(queue, received(body, **attributes))


def run_of(payload):
    """Task, arguments and keyword arguments."""
    return payload["headers"]["task"], *json.loads(payload["body"])[:2]


@pytest.mark.parametrize(
    ("body", "task", "argument"),
    [
        (s3_notification(CREATED), "imports", CREATED),
        (sns(s3_notification(CREATED)), "imports", CREATED),
        (s3_notification(REMOVED), "audits", s3_notification(REMOVED)),
        (s3_notification(REMOVED, REMOVED), "audits", s3_notification(REMOVED, REMOVED)),
        (BRIDGE, "bridged", BRIDGE),
        (sns(BRIDGE), "bridged", BRIDGE),
        (NOTICE, "noticed", NOTICE),
        (sns(eventbridge("shop", "Order")), "noticed", sns(eventbridge("shop", "Order"))),
    ],
)
def test_an_event_runs_the_task_that_takes_it(body, task, argument):
    opened = decode(body)
    assert run_of(opened.payload) == (task, [argument], {})
    assert (opened.task, opened.task_id) == (task, task_id_for("m1"))
    assert opened.payload["properties"]["delivery_tag"] == "h1"


def test_its_dead_letter_is_the_event():
    assert encode_payload(decode(BRIDGE).payload) == json.dumps(BRIDGE)


def test_its_copy_that_waits_for_an_eta_is_a_task():
    copy = encode_payload({**decode(BRIDGE).payload, OWN_BODY: None})
    payload = decode_message(QUEUE, received(copy)).payload
    assert run_of(payload) == ("bridged", [BRIDGE], {})
    assert OWN_BODY not in payload


def test_a_celery_message_stays_one():
    body = encoded(envelope([[1], {}, {}]))
    assert decode(body, adapter=pytest.fail) == decode_message(QUEUE, received(body))


def test_a_celery_message_with_a_fault_is_not_the_adapters():
    with pytest.raises(UnreadableError, match="headers should be a JSON object"):
        decode({"properties": {}, "headers": []}, adapter=pytest.fail)


@pytest.mark.parametrize("queue", [QUEUE, FIFO])
def test_several_records_become_messages_of_their_own(queue):
    body = s3_notification(CREATED, REMOVED, CREATED, REMOVED)
    split = decode(body, queue=queue, MessageGroupId="group")
    assert isinstance(split, Split)
    opened = [decode_message(queue, received(copy.body)) for copy in split.copies]
    assert [run_of(one.payload) for one in opened] == [
        ("audits", [body], {}),
        ("imports", [CREATED], {}),
        ("imports", [CREATED], {}),
    ]
    assert [one.task_id for one in opened] == [task_id_for("m1", index) for index in range(3)]
    ids = [one.task_id if queue.fifo else None for one in opened]
    assert [(copy.group_id, copy.deduplication_id) for copy in split.copies] == [
        ("group", each) for each in ids
    ]
    assert decode(body, queue=queue, MessageGroupId="group") == split


def test_the_messages_of_records_that_came_from_s3_are_no_pointers():
    colour = {"DataType": "String", "StringValue": "red"}
    message = received(s3_notification(CREATED, CREATED))
    message["MessageAttributes"] = {"colour": colour, **size_attribute(7)}
    split = EventMessages(ROUTES).decode(QUEUE, message)
    assert [copy.attributes for copy in split.copies] == [{"colour": colour}] * 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            s3_notification(s3_record(event="ObjectRestore:Post")),
            "no task has an sqs_event for 's3:ObjectRestore:Post': its body is an S3",
        ),
        (
            s3_notification(CREATED, s3_record(event="Replication:x")),
            "no task has an sqs_event for 's3:Replication:x'",
        ),
        (eventbridge("shop", "Order"), "no task has an sqs_event for 'shop/Order'"),
        (sns("", "SubscriptionConfirmation"), "an SNS SubscriptionConfirmation, not a Celery message"),
        ("not JSON", "neither a JSON object nor base64"),
        ("{" * 100_000, "its body is not JSON"),
        ([1], "neither a JSON object nor base64"),
        ({"order": 1}, "it has no 'properties'"),
    ],
    ids=range(8),
)
def test_what_no_task_takes_is_refused(body, reason):
    for adapter in None, lambda _body, _attributes: None:
        with pytest.raises(UnreadableError, match=reason):
            decode(body, adapter)


@pytest.mark.parametrize("body", [S3_TEST, sns(S3_TEST)])
def test_the_test_event_of_s3_is_deleted_and_logged(body, caplog):
    caplog.set_level(logging.INFO)
    assert decode(body, adapter=pytest.fail) == Delete()
    assert "S3's test event is deleted: notifications arrive (queue=q message_id=m1)" in caplog.text


def test_an_adapter_gets_body_and_attributes():
    seen = {}

    def adapt(body, attributes):
        seen.update(attributes, body=body)
        return "orders.place", [body], {"at": 1}

    message = received("<order/>", SentTimestamp="1", MessageGroupId="g")
    message["MessageAttributes"] = {
        "kind": {"DataType": "String", "StringValue": "order"},
        "seal": {"DataType": "Binary", "BinaryValue": b"\0"},
        "SentTimestamp": {"DataType": "String", "StringValue": "forged"},
    }
    opened = EventMessages(ROUTES, adapt).decode(QUEUE, message)
    assert run_of(opened.payload) == ("orders.place", ["<order/>"], {"at": 1})
    own = {"SentTimestamp": "1", "MessageGroupId": "g", "MessageId": "m1", "queue": "q"}
    assert seen == {"body": "<order/>", "kind": "order", "seal": b"\0", **own}


def test_declared_events_go_before_the_adapter():
    assert decode(BRIDGE, adapter=pytest.fail).task == "bridged"
    assert decode(BRIDGE, lambda *_: ("mine", (), {}), routes=EventRoutes()).task == "mine"


def test_an_adapter_that_raises_leaves_a_bad_message():
    with pytest.raises(UnreadableError, match=r"the message_adapter failed: ZeroDivisionError") as refused:
        decode("text", lambda *_: 1 / 0)
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("task", r"should return \(task, args, kwargs\) or None, and returned one of type str"),
        (("task", [object()], {}), "the arguments of its task 'task' cannot be sent"),
        (("task", 5, {}), "the arguments of its task 'task' cannot be sent"),
        (("task", [], 5), "the arguments of its task 'task' cannot be sent"),
    ],
)
def test_an_adapter_that_answers_wrong_leaves_a_bad_message(answer, reason):
    with pytest.raises(UnreadableError, match=reason):
        decode("text", lambda *_: answer)


def test_messages_made_by_message_are_no_events():
    assert decode(task_message("proj.add", [1]), adapter=pytest.fail).task == "proj.add"
