"""Messages that are not Celery's become tasks, or stay what they are: bad messages."""

import json
import logging

import pytest
from support.aws_events import S3_TEST, eventbridge, s3_notification, s3_record, sns
from support.badmessages import encoded, envelope
from support.factories import sqs_queue

from celery_sqs_visibility import task_id_for
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.receive.content import Records
from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.continued_events import ATTRIBUTE, ContinuedEvent, with_ours
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.payload_pointers import size_attribute
from celery_sqs_visibility.transport.codec import decode_message, encode_payload
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


def with_attribute(body, event, **more):
    message = received(body)
    return {**message, "MessageId": "m2", "MessageAttributes": {**(with_ours(more, event) or {})}}


def test_its_copy_that_waits_is_the_event_with_the_eta_and_the_id_in_an_attribute():
    event = ContinuedEvent("m1", eta=2_000_000_000.5, retries=2)
    seen = []
    for body, adapter in ((BRIDGE, None), ("text", lambda *see: seen.append(see) or ("t", [], {}))):
        message = with_attribute(body, event, kind={"DataType": "String", "StringValue": "k"})
        opened = EventMessages(ROUTES, adapter).decode(QUEUE, message)
        assert (opened.task_id, opened.eta) == (task_id_for("m1"), event.eta)
        assert opened.payload["headers"]["retries"] == 2
        assert encode_payload(opened.payload) == message["Body"]
        assert set(opened.payload["properties"]["delivery_info"]["sqs_message"]["MessageAttributes"]) == {
            "kind"
        }
    ((_, attributes),) = seen
    assert attributes["MessageId"] == "m1"
    assert ATTRIBUTE not in attributes


@pytest.mark.parametrize("left", [[0, 1, 2, 3], [2, 3], [1], [3], [0, 2], []])
def test_what_is_left_of_an_event_is_one_message_with_the_same_task_ids(left):
    body = s3_notification(CREATED, REMOVED, CREATED, CREATED)
    whole = decode(body, queue=FIFO, MessageGroupId="group")
    rest = whole.remainder(left)
    assert (rest.body, rest.group_id) == (json.dumps(body), "group")
    message = {**received(body), "MessageId": "m2", "MessageAttributes": rest.attributes}
    opened = EventMessages(ROUTES).decode(QUEUE, message)
    if not left:
        assert opened == Delete()
        return
    assert [copy.body for copy in opened.messages] == [
        whole_copy.body for whole_copy in map(decode(body).messages.__getitem__, left)
    ]
    again = opened.remainder(range(len(left))[1:])
    if len(left) > 1:
        assert json.loads(again.attributes[ATTRIBUTE]["StringValue"])["message_id"] == "m1"


def test_an_event_with_ten_attributes_of_its_own_has_no_space_for_another():
    attribute = {"DataType": "String", "StringValue": "t"}
    message = {
        **received(s3_notification(CREATED, CREATED)),
        "MessageAttributes": {str(n): attribute for n in range(10)},
    }
    assert EventMessages(ROUTES).decode(QUEUE, message).remainder([1]) is None


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        "{}",
        '{"message_id": 7}',
        '{"message_id": "m", "next": "1"}',
        '{"message_id": "m", "x": 1}',
        '{"message_id": "m", "also": 3}',
        '{"message_id": "m", "eta": "now"}',
    ],
)
def test_an_attribute_that_is_not_ours_makes_a_bad_message(value):
    message = {
        **received(BRIDGE),
        "MessageAttributes": {ATTRIBUTE: {"DataType": "String", "StringValue": value}},
    }
    with pytest.raises(UnreadableError, match="its message attribute 'continues' should be"):
        EventMessages(ROUTES).decode(QUEUE, message)


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
    assert isinstance(split, Records)
    opened = [decode_message(queue, received(copy.body)) for copy in split.messages]
    assert [run_of(one.payload) for one in opened] == [
        ("audits", [body], {}),
        ("imports", [CREATED], {}),
        ("imports", [CREATED], {}),
    ]
    assert [one.task_id for one in opened] == [task_id_for("m1", index) for index in range(3)]
    ids = [one.task_id if queue.fifo else None for one in opened]
    assert [(copy.group_id, copy.deduplication_id) for copy in split.messages] == [
        ("group", each) for each in ids
    ]
    again = decode(body, queue=queue, MessageGroupId="group")
    assert (list(again.messages), again.body) == (split.messages[:], split.body)


def test_the_messages_of_an_event_that_was_in_s3_have_their_payloads_themselves():
    kept = {"tenant": {"DataType": "String", "StringValue": "t"}}
    message = received(s3_notification(CREATED, CREATED))
    split = EventMessages(ROUTES).decode(
        QUEUE, {**message, "MessageAttributes": {**kept, **size_attribute(7)}}
    )
    assert [copy.attributes for copy in split.messages] == [kept, kept]


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
        ("{" * 100_000, "nested more than 400 levels deep"),
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
