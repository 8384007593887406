"""kombu's wire format, both ways: what we send its SQS transport reads, what it sends we read."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid
from copy import deepcopy
from datetime import UTC, datetime
from types import SimpleNamespace

import kombu
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu.transport import virtual
from kombu.utils.json import dumps
from support.badmessages import envelope, old_body

from celery_sqs_visibility import task_message
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import ETATooFarError, InvalidIdError, UnreadableError
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES
from celery_sqs_visibility.transport.codec import decode_message, encode_payload, read_json, with_eta
from celery_sqs_visibility.transport.encoding import encode_message, eta_of

stock = pytest.importorskip("kombu.transport.SQS", reason="kombu's own SQS transport", exc_type=ImportError)

QUEUE = Queue("q", "https://sqs.example/1/q", FakeSQS())
FIFO = Queue("q.fifo", "https://sqs.example/1/q.fifo", FakeSQS())


class StockChannel(stock.Channel):
    """kombu's SQS channel of which only the translations are used: it has no connection and no AWS."""

    transport_options = None
    _noack_queues = ()
    wait_time_seconds = 10
    queue_name_prefix = ""

    def __init__(self, base64_encoded=True):
        """Nothing that connects."""
        self.transport_options = {"sqs_base64_encoding": base64_encoded}
        self.sent = []

    def _new_queue(self, queue, **_):
        return f"https://sqs.example/1/{queue}"

    def sqs(self, queue=None):
        return self

    def send_message(self, **request):
        self.sent.append(request)

    def put(self, message, queue="q"):
        """What kombu sends to SQS for a message."""
        self._put(queue, deepcopy(message))
        return self.sent.pop()

    def read(self, body, queue="q"):
        """What kombu makes of a body."""
        return self._message_to_python(received(body), queue, f"https://sqs.example/1/{queue}")


def task(**properties):
    """A Celery task message as kombu hands it to a transport."""
    return {
        "body": base64.b64encode(b'[[1, 2], {}, {"callbacks": null}]').decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "tasks.add", "id": "id-1", "retries": 0, "eta": None},
        "properties": {
            "correlation_id": "id-1",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "q"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "tag-1",
            **properties,
        },
    }


def received(body):
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "handle-1",
        "MD5OfBody": "md5",
        "Body": body,
        "Attributes": {"ApproximateReceiveCount": "1"},
    }


def encoded(payload):
    return base64.b64encode(dumps(payload).encode()).decode()


def read(body):
    """What we make of a body."""
    return decode_message(QUEUE, received(body))


def without_sqs(payload):
    """A payload without what receiving adds to it."""
    payload = deepcopy(payload)
    payload["properties"].pop("delivery_tag", None)
    for name in ("sqs_message", "sqs_queue"):
        payload["properties"].get("delivery_info", {}).pop(name, None)
    return payload


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
#: Properties that a producer may not choose.
RESERVED = {"body_encoding", "delivery_info", "delivery_tag", "message_attributes"}
PROPERTIES = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), JSON, max_size=5)
MESSAGES = st.fixed_dictionaries(
    {
        "body": st.text(),
        "headers": st.dictionaries(st.text(), JSON, max_size=5),
        "properties": PROPERTIES.map(lambda given: {"delivery_info": {"routing_key": "q"}, **given}),
    }
)
BOTH = pytest.mark.parametrize("base64_encoded", [True, False], ids=["base64", "plain"])


@BOTH
def test_what_we_send_is_what_kombu_sends_and_what_we_read_what_kombu_reads_but_for_the_body(base64_encoded):
    body = encode_message(task(), QUEUE, base64_encoded=base64_encoded).body
    assert body == StockChannel(base64_encoded).put(task())["MessageBody"]
    decoded, theirs = read(body), StockChannel().read(body)
    assert (decoded.task, decoded.task_id, decoded.eta) == ("tasks.add", "id-1", None)
    assert theirs["properties"]["delivery_info"]["sqs_message"].pop("Body")
    assert decoded.payload == theirs
    assert decoded.payload["properties"]["delivery_info"]["sqs_queue"] == QUEUE.url
    assert without_sqs(decoded.payload) == without_sqs(task())


@given(MESSAGES, st.booleans())
def test_what_was_sent_is_what_is_read(message, base64_encoded):
    body = encode_message(message, QUEUE, base64_encoded=base64_encoded).body
    decoded = read(body)
    assert without_sqs(decoded.payload) == without_sqs(message)
    assert decoded.payload["properties"]["delivery_tag"] == "handle-1"


def sent_again(payload):
    """The body, after both we and kombu have read from it what the payload says."""
    body = encode_payload(payload)
    assert without_sqs(read(body).payload) == without_sqs(StockChannel().read(body)) == without_sqs(payload)
    return body


@given(MESSAGES)
def test_what_is_sent_to_the_dead_letters_can_be_read_again(message):
    body = sent_again(read(encode_message(message, QUEUE, base64_encoded=True).body).payload)
    assert "sqs_message" not in base64.b64decode(body).decode() or "sqs_message" in str(message)


def test_what_base64_would_make_too_large_for_the_dead_letters_is_left_as_json():
    message = {"body": "x" * (MESSAGE_BYTES * 4 // 5), "properties": {}, "headers": {}}
    assert len(sent_again(read(json.dumps(message)).payload)) <= MESSAGE_BYTES


def test_encoding_changes_nothing_of_what_it_was_given():
    message = task(message_attributes={"a": {"DataType": "String", "StringValue": "b"}})
    before = deepcopy(message)
    encode_message(message, QUEUE, base64_encoded=True)
    encode_payload(read(encoded(task())).payload)
    assert message == before


def request(outgoing: OutgoingMessage):
    """What is asked of SQS, as kombu writes it."""
    names = {
        "MessageBody": outgoing.body,
        "MessageAttributes": outgoing.attributes or None,
        "DelaySeconds": outgoing.delay,
        "MessageGroupId": outgoing.group_id,
        "MessageDeduplicationId": outgoing.deduplication_id,
    }
    return {name: value for name, value in names.items() if value is not None}


@pytest.mark.parametrize(
    "properties",
    [
        {"message_attributes": {"a": {"DataType": "String", "StringValue": "b"}}},
        {"MessageGroupId": "tenant"},
        {"DelaySeconds": 60},
        {"delay_seconds": 60},
        {"delay_seconds": None, "DelaySeconds": 60},
        {"delay_seconds": 0},
        {"delay_seconds": 59.9},
        {"delay_seconds": "60"},
        {"delay_seconds": 10_000},
        {"delay_seconds": -5},
        {"delay_seconds": "soon"},
        {"delay_seconds": float("inf")},
    ],
    ids=repr,
)
def test_properties_become_those_of_sqs_as_with_kombu(properties):
    ours = request(encode_message(task(**properties), QUEUE, base64_encoded=True))
    if kombu.VERSION[:2] < (5, 7):
        pytest.skip("kombu knows fair queues and delay_seconds since 5.7")
    theirs = StockChannel().put(task(**properties))
    assert ours == {name: value for name, value in theirs.items() if name != "QueueUrl"}


@pytest.mark.parametrize("properties", [{}, {"MessageGroupId": "tenant"}, {"delay_seconds": 60}], ids=repr)
def test_a_fifo_queue_gets_its_group_and_no_delay_as_with_kombu(properties):
    message = task(**properties, MessageDeduplicationId="once")
    theirs = StockChannel().put(message, "q.fifo")
    ours = request(encode_message(message, FIFO, base64_encoded=True))
    assert ours == {name: value for name, value in theirs.items() if name != "QueueUrl"}


def test_a_fifo_message_without_a_deduplication_id_gets_one_of_its_own():
    message = task()
    first, other = (encode_message(each, FIFO, base64_encoded=True) for each in (message, task()))
    assert uuid.UUID(first.deduplication_id) != uuid.UUID(other.deduplication_id)
    assert first.group_id == "default"
    again = encode_message(message, FIFO, base64_encoded=True)
    assert again.deduplication_id == first.deduplication_id  # SQS may have it already


@pytest.mark.parametrize("space", [" ", "\n", "\r\n"], ids=repr)
@BOTH
def test_space_around_a_body_is_no_obstacle_as_with_kombu(space, base64_encoded):
    if kombu.VERSION[:2] < (5, 7):
        pytest.skip("kombu strips a body since 5.7")
    body = space + encode_message(task(), QUEUE, base64_encoded=base64_encoded).body + space
    assert without_sqs(StockChannel().read(body)) == without_sqs(task())
    assert without_sqs(read(body).payload) == without_sqs(task())


UNREADABLE = {
    "nothing": "",
    "prose": "please run the import",
    "half of a JSON": '{"body": ',
    "an AWS event": '{"Records": [{"s3": {}}]}',
    "a list": base64.b64encode(b"[1, 2]").decode(),
    "a number": base64.b64encode(b"5").decode(),
    "bytes in base64": base64.b64encode(b"\xff\xfe").decode(),
    "no properties": encoded({"body": "x"}),
    "properties that are none": encoded({"properties": None}),
    "properties that are a list": encoded({"properties": []}),
    "delivery_info that is a list": encoded({"properties": {"delivery_info": []}}),
    "delivery_info that is none": encoded({"properties": {"delivery_info": None}}),
    "headers that are a list": encoded({"properties": {}, "headers": [1]}),
    "too deep": '{"a":' + "[" * 200_000,
    "not ASCII": "übergröße",
    "an unknown type": '{"properties": {}, "x": {"__type__": "no-such", "__value__": 1}}',
    "a date that is none": '{"properties": {}, "x": {"__type__": "datetime", "__value__": "soon"}}',
    "a decimal that is none": '{"properties": {}, "x": {"__type__": "decimal", "__value__": "abc"}}',
    "a uuid that is none": '{"properties": {}, "x": {"__type__": "uuid", "__value__": {"hex": 5}}}',
    "bytes that are none": '{"properties": {}, "x": {"__type__": "bytes", "__value__": 5}}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_not_kombus_is_unreadable_with_a_reason(body):
    with pytest.raises(UnreadableError) as caught:
        read(body)
    assert str(caught.value).startswith("its ")


TYPED = st.builds(
    lambda kind, value: {"__type__": kind, "__value__": value},
    st.sampled_from(["bytes", "base64", "datetime", "date", "time", "decimal", "uuid"]),
    JSON | st.dictionaries(st.sampled_from(["hex", "int", "bytes", "fields", "version"]), JSON),
)


BODIES = (
    st.text()
    | st.binary().map(lambda raw: base64.b64encode(raw).decode())
    | JSON.map(json.dumps)
    | TYPED.map(lambda value: json.dumps({"properties": {}, "headers": {"x": value}}))
)


@given(BODIES)
@settings(max_examples=300)
def test_whatever_is_in_a_queue_it_is_read_or_unreadable(body):
    with contextlib.suppress(UnreadableError):
        read(body)


@pytest.mark.parametrize("headers", [None, {}, {"task": 5, "id": []}])
def test_headers_that_say_nothing_are_fine(headers):
    decoded = read(encoded({"properties": {}, "headers": headers}))
    assert (decoded.task, decoded.task_id, decoded.eta) == (None, None, None)


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ETAS = [
    "2030-01-01T12:00:00+00:00",
    "2030-01-01T12:00:00Z",
    "2030-01-01T14:00:00.000000+02:00",
    "2030-01-01T12:00:00",  # naive: UTC to Celery, whatever its time zone
    "20300101T120000",
    NOON,  # one of kombu's typed values
]


@pytest.mark.parametrize(
    ("eta", "instant"),
    [*((eta, NOON.timestamp()) for eta in ETAS), *((eta, None) for eta in [None, "soon", "", 5, ["2030"]])],
)
def test_an_eta_is_an_instant_or_left_to_celery(eta, instant):
    decoded = read(encoded({"properties": {}, "headers": {"eta": eta}}))
    assert decoded.eta == eta_of({"eta": eta}) == instant


def test_an_eta_that_is_written_is_the_one_that_is_read():
    headers = with_eta({"eta": None, "retries": 0, "id": "1"}, NOON.timestamp(), 2)
    assert headers == {"eta": NOON.isoformat(), "retries": 2, "id": "1"}
    assert eta_of(headers) == NOON.timestamp()


@given(st.text() | st.datetimes(timezones=st.timezones() | st.just(UTC)).map(datetime.isoformat))
@example("0001-01-01T00:00:00+23:59")
@example("9999-12-31T23:59:59-23:59")
def test_whatever_an_eta_says_it_does_no_harm(eta):
    assert eta_of({"eta": eta}) is None or isinstance(eta_of({"eta": eta}), float)


def test_what_a_lambda_sends_by_message_kombu_reads_as_we_do():
    body = task_message("tasks.add", [1], {"y": 2}, task_id="id-1")
    theirs, ours = StockChannel().read(body), read(body).payload
    assert without_sqs(theirs) == without_sqs(ours)
    channel = SimpleNamespace(decode_body=lambda text, _encoding: text)
    assert virtual.Message(theirs, channel).payload[:2] == [[1], {"y": 2}]


def test_a_message_of_protocol_1_is_known_by_its_task():
    body = json.dumps(old_body(task="tasks.old", id="id-1", eta="2031-01-01T00:00:00+00:00"))
    decoded = decode_message(QUEUE, received_of(envelope(body.encode(), protocol=1)))
    assert (decoded.task, decoded.task_id, decoded.eta) == ("tasks.old", "id-1", None)


@pytest.mark.parametrize(
    "message",
    [
        envelope(b"[[], {}, {}]", headers={"eta": "9998-12-31T00:00:00+00:00"}),
        envelope(json.dumps(old_body(eta="9998-12-31T00:00:00")).encode(), protocol=1),
    ],
)
def test_an_eta_that_never_comes_is_a_bad_message(message):
    with pytest.raises(UnreadableError, match=r"its ETA, 9998-12-31T00:00:00.*, is more than ten years away"):
        decode_message(QUEUE, received_of(message))


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        ({"task": "t", "id": "order\n5"}, {}),
        ({"task": "t", "id": 7}, {}),
        ({}, {"MessageGroupId": "Acme Corp"}),
        ({}, {"MessageGroupId": ""}),
        ({"task": "t", "id": "1", "eta": "9998-12-31T00:00:00+00:00"}, {}),
    ],
)
def test_what_sqs_or_workers_would_refuse_is_not_published(headers, properties):
    with pytest.raises((InvalidIdError, ETATooFarError)):
        encode_message({"body": "", "headers": headers, "properties": properties}, QUEUE, base64_encoded=True)


def received_of(message):
    return {"MessageId": "m", "ReceiptHandle": "h", "Body": json.dumps(message), "Attributes": {}}


space = st.text(" \t\r\n", max_size=2)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(space, values, space)
def test_a_value_is_read_with_and_without_white_space_around_it(before, value, after):
    assert read_json(before + json.dumps(value) + after) == value


@pytest.mark.parametrize("text", ["", " ", "{", "nothing", "{} {}", "[1]]", "\ufeff{}"])
def test_what_is_no_value_is_refused_as_by_json(text):
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as refused:
        read_json(text)
    assert str(refused.value) == str(expected.value)
