"""Whatever is in a queue is a task, or no task with a reason; nothing else comes of it."""

from __future__ import annotations

import base64
import json
import pickle
import re
import zlib
from types import SimpleNamespace
from typing import ClassVar

import pytest
from celery import Celery, signals
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.strategy import hybrid_to_proto2, proto1_to_proto2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.exceptions import ContentDisallowed, DecodeError, SerializerNotInstalled
from kombu.transport import virtual
from kombu.utils.json import dumps
from support import aws_events, badmessages
from support.badmessages import BAD, body_of, encoded, envelope, old_body

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.content import MAX_TEXT_CHARACTERS, loggable
from celery_sqs_visibility.errors import TooLargeError, UnreadableError
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES
from celery_sqs_visibility.task.context import LIMIT_HEADER, DeliveryContext
from celery_sqs_visibility.transport.aws_events import describe_aws_event
from celery_sqs_visibility.transport.codec import ATTRIBUTE_BYTES, MAX_DEPTH, decode_message, encode_payload
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker import validation
from celery_sqs_visibility.worker.validation import CHECKS, NOT_REGISTERED, BadMessages, validate

QUEUE = Queue("q", "https://sqs.example/1/q", FakeSQS())
app = Celery("bad", broker="memory://", set_as_current=False)

# The second thousand still finds reasons that the first did not; on a busy machine it takes its time.
MANY = settings(max_examples=2000, suppress_health_check=list(HealthCheck))
SOME = settings(MANY, max_examples=300)
pytestmark = pytest.mark.timeout(600)


@app.task(name=badmessages.TASK)
def once(key):
    return key


class Channel:
    """As much of a channel as a message needs."""

    codecs = virtual.Channel.codecs
    decode_body = virtual.Channel.decode_body


def received(body):
    return {"MessageId": "m", "ReceiptHandle": "h", "Body": body, "Attributes": {}}


def message_of(body):
    message = Message(decode_message(QUEUE, received(body)).payload, channel=Channel())
    message.accept = {"application/json"}
    return message


def fate(body):
    """What becomes of a message: "runs", or why it does not. Nothing but these exceptions comes of it."""
    try:
        message = message_of(body)
    except UnreadableError as error:
        return str(error)
    if message.errors:
        return f"undecodable: {message.errors[0][1]!r}"
    try:
        validate(message, app.tasks)
    except (InvalidTaskError, ContentDisallowed, DecodeError, TooLargeError) as error:
        return str(error)
    return made_by_celery(message)


def made_by_celery(message):
    """What Celery's consumer does with a message that was found fit."""
    name = message.headers.get("task")
    if name is None:
        body = message.payload
        if not isinstance(body, dict) or "task" not in body:
            return "names no task"
        if body["task"] not in app.tasks:
            return "unknown"
        body, headers, decoded, _ = proto1_to_proto2(message, body)
    elif name not in app.tasks:
        return "unknown"
    elif isinstance(message.payload, dict):
        body, headers, decoded, _ = hybrid_to_proto2(message, message.payload)
    else:
        body, headers, decoded = message.body, message.headers, False
    request = Request(message, app=app, task=once, body=body, headers=headers, decoded=decoded)
    assert not request.stamps or request.stamped_headers
    hard, soft = request.time_limits
    assert (hard or 0) + (soft or 0) >= 0
    try:
        pickle.dumps(request.request_dict)
    except RecursionError:
        return "cannot be pickled"
    return "runs"


def with_headers(**headers):
    return envelope(body_of(), headers=headers)


def embedding(**embedded):
    return envelope(body_of(embedded=embedded))


CALLBACKS = [{"task": "a", "args": [], "kwargs": {}, "options": {}}]
FULL = {
    "root_id": "a",
    "timelimit": [10.5, None],
    "eta": "2030-01-01T00:00:00+00:00",
    "expires": None,
    "stamped_headers": ["a"],
    "stamps": {"a": 1},
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
RIGHT = {
    "protocol 2": envelope(body_of()),
    "protocol 1": envelope(old_body(), protocol=1),
    "both": envelope({"args": ["key"], "kwargs": {}}),
    "all that Celery sends": envelope(body_of(embedded={"callbacks": CALLBACKS}), headers=FULL),
    "much that is not deep": with_headers(x=[[[]] for _ in range(2 * MAX_DEPTH)]),
    **{
        f"encoding {encoding}": {**envelope(body_of()), "content-encoding": encoding}
        for encoding in (None, "", "utf-8", "UTF-8", "us-ascii", "latin-1", "binary", "ascii-8bit")
    },
}


@pytest.mark.parametrize("message", RIGHT.values(), ids=RIGHT)
def test_what_is_right_runs(message):
    assert fate(encoded(message)) == "runs"


ANY_VALUE = badmessages.JSON | badmessages.TYPED
ANY_HEADERS = st.dictionaries(st.sampled_from(sorted(CHECKS)), ANY_VALUE, max_size=5)
ANY_BODY = st.lists(ANY_VALUE, max_size=4) | badmessages.JSON


@pytest.mark.parametrize(
    "bodies",
    [
        BAD,
        ANY_HEADERS.map(lambda headers: dumps(with_headers(**headers))),
        ANY_BODY.map(lambda body: encoded(envelope(body))),
    ],
    ids=["what is bad", "any headers", "any body"],
)
@pytest.mark.slow("thousands of examples")
@MANY
@given(data=st.data())
def test_whatever_it_is_it_runs_or_is_turned_away_with_a_reason_that_sqs_takes(bodies, data):
    reason = loggable(fate(data.draw(bodies)))
    assert len(reason) <= MAX_TEXT_CHARACTERS + 3
    assert all(c in "\t\n\r" or c >= " " for c in reason)
    reason.encode()


@pytest.mark.slow("thousands of examples")
@MANY
@given(badmessages.ENVELOPES)
def test_what_can_be_read_can_be_sealed_again(message):
    try:
        payload = decode_message(QUEUE, received(encoded(message))).payload
    except UnreadableError:
        return
    sealed = encode_payload(payload)
    assert base64.b64decode(sealed, validate=True), "what fits in base64 stays in base64"
    again = decode_message(QUEUE, received(sealed)).payload
    assert repr(again.get("body")) == repr(payload.get("body"))
    assert repr(again.get("headers")) == repr(payload.get("headers"))


NEARLY_PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=3),
        "shadow": st.none() | st.text(max_size=3) | st.just("a'b\"c\\d"),
        "retries": st.none() | st.integers(-1, 10**7) | st.booleans() | st.floats(0, 9),
        "timelimit": st.none() | st.lists(st.none() | st.integers(-1, 10**10) | st.floats(), max_size=3),
        "stamps": st.none() | st.just({}) | st.just([]),
        "eta": st.none() | st.just("soon") | st.just("2030-01-01T00:00:00+00:00"),
        "sqs": st.none(),
        "get": st.none(),
    },
)


@pytest.mark.slow("hundreds of examples")
@SOME
@given(NEARLY_PLAIN | ANY_HEADERS)
def test_one_look_at_plain_headers_lets_nothing_through_that_a_close_one_does_not(headers):
    body = dumps(with_headers(**headers))
    after_one_look = fate(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "_are_plain", lambda _headers, _properties: False)
        assert fate(body) == after_one_look


WRONG = {
    "'task' should be text without control characters, and is 5": with_headers(task=5),
    "'id' is missing": with_headers(id=None),
    "'retries' should be a number from 0 to 1000000, and is 'many'": with_headers(retries="many"),
    "'timelimit' should be a list of two numbers of seconds, or null, and is of type list": with_headers(
        timelimit=[1]
    ),
    "'eta' should be a time as in ISO 8601, and is 'soon'": with_headers(eta="soon"),
    "'expires' should be a time as in ISO 8601, and is 5": with_headers(expires=5),
    "'stamps' should be an object, and is of type list": with_headers(stamps=["a"]),
    "'get' cannot be a header: it is a method of a task's request": with_headers(get="x"),
    "'args' should be a list, and is 5": envelope([5, {}, {}]),
    "'kwargs' should be an object with names, and is of type list": envelope([[], [], {}]),
    "'embed' should be an object, and is of type list": envelope([[], {}, []]),
    "its body should be [args, kwargs, embed], and is of type list": envelope([[], {}]),
    "'callbacks' should be a list of signatures, and is of type list": embedding(callbacks=[{"task": 5}]),
    "'chord' should be a signature, and is of type list": embedding(chord=[1]),
    "'sqs' cannot be embedded in its body": embedding(sqs={}),
}


@pytest.mark.parametrize(("reason", "message"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_named(reason, message):
    assert fate(encoded(message)) == reason


def test_what_a_foreign_header_says_of_sqs_is_not_believed():
    message = message_of(encoded(envelope(body_of(), headers={"sqs": {"queue": "of somebody else"}})))
    validate(message, app.tasks)
    assert "sqs" not in message.headers


def test_the_task_of_another_worker_is_left_to_celery_whatever_is_in_it():
    message = message_of(encoded(envelope(b"not JSON", headers={"task": "of.another"})))
    validate(message, app.tasks)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (aws_events.s3_notification(), "an S3 event notification"),
        (aws_events.S3_TEST, "an S3 test event"),
        (badmessages.SNS, "an SNS message (raw message delivery is off)"),
        (badmessages.SNS | {"Type": "SubscriptionConfirmation"}, "an SNS SubscriptionConfirmation"),
        (aws_events.eventbridge(), "an EventBridge event"),
        ({"Records": [{"EventSource": "aws:sns", "Sns": {}}]}, "an event of aws:sns"),
    ],
)
def test_messages_of_other_systems_are_called_what_they_are(event, named):
    assert describe_aws_event(event) == named
    assert fate(json.dumps(event)) == fate(encoded(event)) == f"its body is {named}, not a Celery message"


@given(badmessages.JSON | st.fixed_dictionaries({"Records": badmessages.JSON}))
def test_whatever_a_body_is_it_is_recognised_or_not(body):
    assert describe_aws_event(body) is None


def test_a_bomb_is_not_decompressed_by_kombu_either():
    bomb = zlib.compress(bytes(DECOMPRESSED_BYTES + 1), 9)
    assert len(bomb) < 100_000
    reason = fate(encoded(envelope(bomb, headers={"compression": "gzip"})))
    assert reason.startswith("undecodable: TooLargeError('it is larger than 8388608 bytes")


def test_a_compressed_body_is_decompressed_once_and_its_header_stays():
    body = zlib.compress(json.dumps(body_of()).encode())
    message = message_of(encoded(envelope(body, headers={"compression": "gzip"})))
    assert message.payload == body_of()
    assert message.headers["compression"] == "gzip"
    again = decode_message(QUEUE, received(encode_payload(message.sent))).payload
    assert base64.b64decode(again["body"]) == body


@pytest.mark.parametrize("encoding", ["zlib", "bz2", "hex", "punycode", "idna", "no-such", "a\0b"])
def test_a_content_encoding_that_is_not_of_text_is_refused(encoding):
    bomb = {"content-type": "application/data", "content-encoding": encoding}
    assert fate(encoded({**envelope(zlib.compress(bytes(10))), **bomb})).endswith("is not a text encoding")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 900])
def test_an_envelope_is_not_nested_without_end(depth):
    body = '{"properties": {}, "headers": {"x": ' + badmessages.nested(depth) + "}}"
    assert re.search("nested more than (100|400) levels deep", fate(body))


@pytest.mark.parametrize("plain", ["a" * 1_040_000, "ä" * 500_000, "\\ud800" * 100_000, "日" * 300_000])
def test_a_dead_letter_of_a_body_at_the_size_limit_is_not_larger_than_sqs_takes(plain):
    body = '{"body":"' + plain + '","properties":{"delivery_info":{}},"headers":{}}'
    assert len(body.encode()) < MESSAGE_BYTES
    payload = decode_message(QUEUE, received(body)).payload
    letter = encode_payload(payload)
    assert len(letter.encode()) <= MESSAGE_BYTES - ATTRIBUTE_BYTES
    assert decode_message(QUEUE, received(letter)).payload["body"] == payload["body"]


def test_names_are_told_as_far_as_they_can_be_printed():
    headers = {"task": "a\0b\ud800" + "c" * 10_000, "id": 5}
    opened = decode_message(QUEUE, received(json.dumps(envelope(body_of(), headers=headers))))
    task, task_id = loggable(opened.task), loggable(opened.task_id)
    assert task.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}ccc")
    assert len(task) <= MAX_TEXT_CHARACTERS + 3
    assert task_id is None


def test_no_message_sets_what_is_ours_to_set_of_a_request():
    headers = dict.fromkeys(DeliveryContext.__annotations__, 1)
    message = SimpleNamespace(headers=headers, properties={}, payload=None)
    validate(message, {})
    assert message.headers == {LIMIT_HEADER: 1}


def test_an_instant_for_which_memory_lacks_is_no_fault_of_its_message(monkeypatch):
    def lack(_text):
        raise MemoryError

    monkeypatch.setattr(validation, "maybe_iso8601", lack)
    with pytest.raises(MemoryError):
        validation._is_instant("2026-01-01T12:00:00")


def test_keyword_arguments_of_other_serializers_have_names_too():
    for kwargs in ({1: 2}, {"a": 1, 2: 3}):
        message = SimpleNamespace(
            headers={"task": badmessages.TASK, "id": "a"},
            properties={},
            payload=[[], kwargs, dict(validation.NOTHING_EMBEDDED)],
        )
        with pytest.raises(InvalidTaskError, match="'kwargs' should be an object with names"):
            validate(message, app.tasks)


class StubMessage:
    """Notes what becomes of it."""

    def __init__(self, *, payload=None, **headers):
        self.headers, self.payload = headers, payload
        self.fate = []

    def refuse(self, reason, *, others_may=False):
        self.fate.append((reason, others_may))

    def come_back(self, error):
        self.fate.append(error)


class StubConsumer:
    """A sender of signals, which are told to whoever is hashable."""

    strategies: ClassVar = {"task": "strategy"}

    def create_task_handler(self):
        """Celery's own."""


@pytest.fixture
def consumer():
    return StubConsumer()


@pytest.fixture
def bad(consumer):
    return BadMessages(consumer)


@pytest.fixture
def heard():
    """What listeners of Celery's signals hear."""
    heard = []

    def note(signal, sender, **facts):
        heard.append(
            (
                signal.name,
                sender,
                {name: facts[name] for name in ("message", "exc", "name", "id") if name in facts},
            )
        )

    for each in (signals.task_rejected, signals.task_unknown):
        each.connect(note)
    yield heard
    for each in (signals.task_rejected, signals.task_unknown):
        each.disconnect(note)


def test_a_message_that_names_no_task_is_refused_everywhere(bad, consumer, heard):
    message = StubMessage()
    bad.on_unknown_message(None, message)
    assert message.fate == [("its headers name no task", False)]
    assert heard == [("task_rejected", consumer, {"message": message, "exc": None})]


@pytest.mark.parametrize(
    "message",
    [
        StubMessage(task="new", id="id"),
        StubMessage(payload={"task": "new", "id": "id"}),
        StubMessage(task="new", id="id", payload={"task": "other", "id": "other"}),
    ],
    ids=["protocol 2", "protocol 1", "both"],
)
def test_a_task_that_is_not_registered_here_may_be_another_workers(bad, consumer, heard, message):
    message.fate.clear()
    error = KeyError("new")
    bad.on_unknown_task(None, message, error)
    assert message.fate == [(f"task 'new' {NOT_REGISTERED}", True)]
    assert heard == [
        ("task_unknown", consumer, {"message": message, "exc": error, "name": "new", "id": "id"})
    ]


def test_a_message_whose_payload_is_no_object_has_no_name(bad):
    message = StubMessage(payload=["task"])
    bad.on_unknown_task(None, message, KeyError())
    assert message.fate == [(f"task None {NOT_REGISTERED}", True)]


def test_an_invalid_task_is_refused_everywhere(bad, consumer, heard):
    message, error = StubMessage(task="task"), ContentDisallowed("pickle")
    bad.on_invalid_task(None, message, error)
    assert message.fate == [("its task is invalid: pickle", False)]
    assert heard == [("task_rejected", consumer, {"message": message, "exc": error})]


@pytest.mark.parametrize(
    ("error", "compression", "fate"),
    [
        (ValueError("no"), None, ("its content cannot be decoded: ValueError('no')", False)),
        (ValueError("no"), "application/x-other", ("its content cannot be decoded: ValueError('no')", True)),
        (
            SerializerNotInstalled("yaml"),
            None,
            ("its content cannot be decoded: SerializerNotInstalled('yaml')", True),
        ),
        (TooLargeError("it is too large"), None, ("it is too large", False)),
    ],
)
def test_a_body_that_cannot_be_decoded_may_be_another_workers_if_that_has_the_codec(
    bad, error, compression, fate
):
    message = StubMessage(compression=compression)
    bad.on_decode_error(message, error)
    assert message.fate == [fate]


def test_a_lack_of_memory_while_decoding_has_the_message_come_back(bad):
    message, error = StubMessage(), MemoryError()
    bad.on_decode_error(message, error)
    assert message.fate == [error]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ContentDisallowed("pickle"), "its task is invalid: pickle"),
        (ValueError("no"), "its content cannot be decoded: ValueError('no')"),
        (None, None),
    ],
)
def test_celery_gets_valid_messages_only(bad, consumer, monkeypatch, error, reason):
    asked, handled = [], []

    def validate(message, tasks):
        asked.append((message, tasks))
        if error is not None:
            raise error

    monkeypatch.setattr(validation, "validate", validate)
    message = StubMessage(task="task")
    bad.validating(handled.append)(message)
    assert asked == [(message, consumer.strategies)]
    assert [each[0] for each in message.fate] == ([] if reason is None else [reason])
    assert handled == ([message] if reason is None else [])


def test_a_task_with_named_arguments_is_valid():
    message = StubMessage(payload=[[], {"page": 1}, validation.NOTHING_EMBEDDED], task="task", id="id")
    message.properties = {}
    validation.validate(message, {"task": "strategy"})
