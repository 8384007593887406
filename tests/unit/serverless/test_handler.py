"""A function runs tasks as a worker does, and reports what Lambda must not delete."""

import io
import json
import logging
import re
import threading
from pathlib import Path

import pytest
from celery.exceptions import ImproperlyConfigured
from support import factories
from support.aws_events import s3_notification, s3_record
from support.badmessages import encoded, envelope
from support.factories import EVERYTHING
from support.lambda_function import CHANGES, ENDS_OF_PROCESSES, Invocation, note

from celery_sqs_visibility import OptionError, task_message
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.endings import OUTCOMES
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    UnavailableError,
)
from celery_sqs_visibility.events import DeliveryEnded
from celery_sqs_visibility.operate.metrics.emf import LOGGER, UNITS
from celery_sqs_visibility.policy.payload_pointers import pointer_body, size_attribute
from celery_sqs_visibility.serverless.handler import message_of, records_of


def test_what_succeeds_is_left_to_lambda_and_what_fails_is_hidden_and_reported(world):
    world.send("a", "bad", "b")
    assert world.invoke() == ["bad"]
    assert [key for key, *_ in world.ran] == ["a", "bad", "b"]
    assert world.changes() == [10]
    assert [world.state(key) for key in ("a", "bad", "b")] == ["SUCCESS", "RETRY", "SUCCESS"]
    assert factories.counts(world.queue) == (0, 1)
    assert factories.requests(world.sqs, "GetQueueUrl") == []


def test_with_remote_control_neither_a_function_nor_a_publisher_makes_a_queue_for_it(make):
    world = make(options={"remote_control": True})
    made = len(world.sqs.calls)
    world.send("a")
    assert world.invoke() == []
    world.app.send_task("note", ["b"], queue="q")
    later = {action for action, _ in world.sqs.calls[made:]}
    assert not later & {"CreateQueue", "ListQueues", "TagQueue"}
    with world.app.connection_for_write() as connection:
        assert "control" not in vars(connection.transport.context), "nor has it a thread"


def test_a_fifo_group_stops_at_its_first_failure(make):
    world = make("q.fifo", letters=None)
    world.send("bad-1", "after", group="g")
    world.send("other", group="h")
    assert world.invoke() == ["bad-1", "after"]
    assert [key for key, *_ in world.ran] == ["bad-1", "other"]
    assert world.changes() == [10, 0]
    assert world.invoke() == []
    world.clock.advance(10)
    world.invoke()
    assert [key for key, *_ in world.ran] == ["bad-1", "other", "bad-1", "after"]


@pytest.mark.parametrize(("others", "warned"), [(["g"], 1), (["h"], 0)])
def test_a_fifo_batch_with_several_messages_of_a_group_is_warned_of_once(make, caplog, others, warned):
    world = make("q.fifo")
    handler = world.handler()
    for _ in range(2):
        for number, group in enumerate(["g", *others]):
            world.send(f"a-{number}", group=group)
        assert world.invoke(handler) == []
    assert caplog.text.count("2 messages of one group of FIFO queue 'q.fifo' came in one batch") == warned


@pytest.mark.parametrize("key", sorted(ENDS_OF_PROCESSES))
def test_what_would_end_a_process_takes_no_success_with_it(world, key):
    world.send("a", key, "b")
    failed = world.invoke()
    ran = {each for each, *_ in world.ran}
    assert {"a", key} <= ran
    assert set(failed) == {key, "b"} - ran | {key}


def test_events_run_tasks(world):
    factories.send(world.queue, json.dumps(s3_notification()))
    world.app.tasks["note"].run = lambda record: world.ran.append(record["eventName"])
    handler = world.handler()
    assert handler(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert world.ran == ["ObjectCreated:Put"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("no task", "its body is neither a JSON object nor base64 of one"),
        (
            task_message("note").replace('"retries": 0', '"retries": "x"'),
            "its task is invalid: 'retries' should be",
        ),
        (json.dumps({"properties": {}}), "its headers name no task"),
        (
            encoded(envelope([], headers={"task": "note", "compression": "zlib"})),
            "its content cannot be decoded",
        ),
        (
            task_message("note").replace("application/json", "application/x-python-serialize"),
            "its task is invalid: ",
        ),
    ],
)
def test_a_bad_message_is_a_dead_letter(world, body, reason):
    factories.send(world.queue, body)
    assert world.handler()(world.event(), Invocation(60)) == {"batchItemFailures": []}
    (letter,) = world.letters()
    assert letter.startswith(reason)
    assert world.ran == []


def test_no_records_are_no_failures(world):
    assert world.handler()({"Records": []}, Invocation(1)) == {"batchItemFailures": []}


@pytest.mark.parametrize(
    ("conf", "error", "sentence"),
    [
        (
            {"broker_transport": None, "broker_url": "memory://"},
            ImproperlyConfigured,
            "broker transport is 'memory'",
        ),
        (
            {"broker_transport_options": {"visiblity_timeout": 1}},
            OptionError,
            "did you mean 'visibility_timeout'",
        ),
        (
            {"broker_transport_options": {"message_adapter": "no.such:thing"}},
            ImproperlyConfigured,
            "No module named",
        ),
    ],
)
def test_wrong_settings_are_refused_when_the_handler_is_made(world, conf, error, sentence):
    world.app.conf.update(conf)
    with pytest.raises(error, match=sentence):
        world.handler()


def test_predefined_queues_keep_their_name(make):
    world = make()
    world.app.conf.broker_transport_options = {"predefined_queues": {"orders": {"url": world.queue.url}}}
    world.send("a")
    world.invoke()
    assert [queue for _, _, queue, _ in world.ran] == ["orders"]


def test_a_queue_has_options_of_its_own(make):
    queues = {"orders": {"error_visibility_timeout": 7}, "*": {"error_visibility_timeout": 900}}
    world = make("orders", {"queues": queues, "error_visibility_timeout": 30})
    world.app.task(note, bind=True, name="plain", shared=False, error_visibility_timeout=None)
    world.send("bad", task="plain")
    assert world.invoke() == ["bad"]
    assert world.changes() == [7]


def test_what_is_due_does_not_wait_for_what_is_not(world):
    world.send_with_eta("later", 1.5)
    world.send("now")
    world.invoke()
    assert [key for key, *_ in world.ran] == ["now", "later"]


@pytest.fixture
def lines():
    """The values of the lines so far."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOGGER.addHandler(handler)
    yield lambda: [
        {name: line[name] for name in line if name != "_aws"}
        for line in map(json.loads, stream.getvalue().splitlines())
    ]
    LOGGER.removeHandler(handler)


def test_an_invocation_ends_with_a_line_that_counts_its_messages(make, lines):
    world = make(options={"metrics": ["emf"]})
    handler = world.handler()
    world.send("a", "bad", "b")
    world.send("c", task="stock")
    world.invoke(handler)
    world.clock.advance(10)
    world.invoke(handler)
    assert lines() == [
        {"Queue": "q", "MessagesReceived": 4, "TasksSucceeded": 3, "TasksRetried": 1},
        {"Queue": "q", "MessagesReceived": 1, "TasksFailed": 1, "DeadLettered": 1},
    ]
    assert not DeliveryEnded.is_wanted()


def test_what_was_not_run_is_counted_and_so_is_an_invocation_that_a_task_ends(make, lines):
    world = make(options={"metrics": "emf"})
    world.send("shutdown", "b")
    assert world.invoke() == ["shutdown", "b"]
    world.send_with_eta("later", 3600)
    world.invoke()
    assert lines() == [
        {"Queue": "q", "MessagesReceived": 2, "TasksRetried": 1, "TasksReleased": 1},
        {"Queue": "q", "MessagesReceived": 2, "TasksSucceeded": 1, "TasksDelayed": 1},
    ]


@pytest.mark.parametrize("options", [{}, {"metrics": []}, {"metrics": ["prometheus"]}], ids=str)
def test_without_the_option_nothing_is_written(make, lines, options):
    world = make(options=options)
    world.send("a")
    world.invoke()
    assert lines() == []


def test_a_logger_that_raises_fails_no_invocation(make, lines, monkeypatch):
    world = make(options={"metrics": ["emf"]})
    world.send("a")
    monkeypatch.setattr(LOGGER, "filters", [lambda record: 1 / 0])
    assert world.invoke() == lines() == []


def test_each_outcome_has_its_metric_and_the_page_has_them_all():
    names = {name for name in UNITS if name.startswith("Tasks")} | {"MessagesReceived", "DeadLettered"}
    assert names >= {f"Tasks{outcome.capitalize()}" for outcome in OUTCOMES.values()}
    page = (Path(__file__).resolve().parents[3] / "docs/lambda.md").read_text()
    told = re.search(r"^## Metrics\n(.*?)^## ", page, flags=re.DOTALL | re.MULTILINE)[1]
    assert names <= set(re.findall(r"`(\w+)`", told))


#: AWS Lambda Developer Guide, "Using Lambda with Amazon SQS": a FIFO queue's.
RECORD = {
    "messageId": "11d6ee51-4cc7-4302-9e22-7cd8afdaadf5",
    "receiptHandle": "AQEBBX8nesZEXmkhsmZeyIE8iQAMig7qw...",
    "body": "Test message.",
    "attributes": {
        "ApproximateReceiveCount": "1",
        "SentTimestamp": "1573251510774",
        "SequenceNumber": "18849496460467696128",
        "MessageGroupId": "1",
        "SenderId": "AIDAIO23YVJENQZJOL4VO",
        "MessageDeduplicationId": "1",
        "ApproximateFirstReceiveTimestamp": "1573251510774",
    },
    "messageAttributes": {
        "kind": {
            "stringValue": "order",
            "stringListValues": [],
            "binaryListValues": [],
            "dataType": "String",
        },
        "seal": {"binaryValue": "AAE=", "dataType": "Binary"},
    },
    "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
    "eventSource": "aws:sqs",
    "eventSourceARN": "arn:aws:sqs:us-east-2:123456789012:fifo.fifo",
    "awsRegion": "us-east-2",
}


def test_a_record_is_a_received_message():
    assert records_of({"Records": [RECORD]}) == [RECORD]
    assert message_of(RECORD) == {
        "MessageId": RECORD["messageId"],
        "ReceiptHandle": RECORD["receiptHandle"],
        "Body": "Test message.",
        "MD5OfBody": RECORD["md5OfBody"],
        "Attributes": RECORD["attributes"],
        "MessageAttributes": {
            "kind": {"DataType": "String", "StringValue": "order"},
            "seal": {"DataType": "Binary", "BinaryValue": b"\0\1"},
        },
    }


@pytest.mark.parametrize(
    ("event", "got"),
    [
        ({"key1": "value1"}, r"the keys \['key1'\]"),
        ({"Records": [{"eventSource": "aws:s3"}]}, r"the keys \['Records'\]"),
        ({"Records": [None]}, "the keys"),
        ([], "a list"),
        (None, "a NoneType"),
    ],
)
def test_other_events_are_refused(event, got):
    with pytest.raises(ValueError, match=f"expected the event of an SQS event source mapping.*got {got}"):
        records_of(event)


DENIED = AccessDeniedError("AccessDenied")


DOWN = UnavailableError("no answer from S3")


@pytest.fixture
def large_world(make):
    return make(options={"payload_store": "s3://payloads"})


def send_large(world, key, body=None):
    """Put a message whose payload is the S3 object of that key."""
    world.payloads.objects[key] = (body or task_message("note", [key], task_id=key)).encode()
    world.queue.sqs.send(world.queue.url, OutgoingMessage(pointer_body("payloads", key), size_attribute(7)))


def dead_letter(world):
    (letter,) = world.sqs.receive(world.dead.url, 10, 0, EVERYTHING)
    return letter["Body"], described(letter["MessageAttributes"])["reason"]


def test_a_payload_is_fetched_and_runs_and_stays(large_world):
    send_large(large_world, "a")
    assert large_world.invoke() == []
    assert [key for key, *_ in large_world.ran] == ["a"]
    assert list(large_world.payloads.objects) == ["a"]


def test_a_failed_run_is_hidden_and_its_last_one_is_a_dead_letter_with_the_pointer(large_world):
    handler = large_world.handler()
    send_large(large_world, "bad")
    assert large_world.invoke(handler) == ["bad"]
    assert large_world.changes() == [10]
    large_world.clock.advance(10)
    assert large_world.invoke(handler) == []
    assert dead_letter(large_world) == (pointer_body("payloads", "bad"), "failed at its last attempt")
    assert list(large_world.payloads.objects) == ["bad"]


@pytest.mark.parametrize("error", [DENIED, DOWN])
def test_what_s3_does_not_give_is_reported_and_comes_back(make, caplog, error):
    caplog.set_level(logging.WARNING)
    world = make(options={"payload_store": "s3://payloads", "error_visibility_timeout": 20})
    send_large(world, "a")
    world.payloads.fail_next("GetObject", error)
    assert world.invoke() == ["a"]
    assert world.changes() == [20]
    assert "a payload could not be fetched from S3, so its message comes back (queue=q" in caplog.text
    assert f"payload=s3://payloads/a error={error})" in caplog.text
    world.clock.advance(20)
    assert world.invoke() == []


def test_at_the_last_receive_it_is_hidden_for_an_hour_and_no_dead_letter(make):
    world = make(options={"payload_store": "s3://payloads"}, most=1)
    send_large(world, "a")
    world.payloads.fail_next("GetObject", DOWN)
    assert world.invoke() == ["a"]
    assert world.changes() == [3600]
    assert world.letters() == []


def test_a_payload_that_is_gone_is_a_dead_letter(large_world):
    send_large(large_world, "a")
    del large_world.payloads.objects["a"]
    assert large_world.invoke() == []
    body, reason = dead_letter(large_world)
    assert body == pointer_body("payloads", "a")
    assert reason.startswith("its payload s3://payloads/a is gone")


def test_a_large_message_with_a_far_eta_waits_with_its_pointer(large_world):
    far = json.loads(task_message("note", ["a"], task_id="a"))
    far["headers"]["eta"] = "2033-05-18T03:33:20+00:00"
    send_large(large_world, "a", json.dumps(far))
    assert large_world.invoke() == ["a"]
    assert (large_world.ran, len(factories.requests(large_world.sqs, CHANGES))) == ([], 1)


def test_a_large_event_of_several_records_is_split(large_world):
    send_large(large_world, "e", json.dumps(s3_notification(s3_record(), s3_record())))
    large_world.app.tasks["note"].run = lambda record: large_world.ran.append(record["eventName"])
    assert large_world.invoke() == []
    assert large_world.invoke() == []
    assert large_world.ran == ["ObjectCreated:Put"] * 2


def test_without_a_bucket_a_pointer_is_a_dead_letter_that_says_so(make):
    world = make()
    send_large(world, "a")
    assert world.invoke() == []
    assert "set payload_store to 's3://payloads'" in dead_letter(world)[1]


def test_a_payload_that_comes_when_the_invocation_is_nearly_over_is_not_run(large_world, monkeypatch, caplog):
    get = large_world.payloads.get

    def slow(key, most, progress):
        large_world.clock.advance(59.5)
        return get(key, most, progress)

    send_large(large_world, "a")
    monkeypatch.setattr(large_world.payloads, "get", slow)
    assert large_world.invoke(seconds=60) == ["a"]
    assert large_world.ran == []
    assert "error=GetObject did not end before the invocation)" in caplog.text


def test_a_silent_s3_does_not_outlast_the_function_and_the_message_is_hidden(make, monkeypatch, caplog):
    world = make(options={"payload_store": "s3://payloads", "error_visibility_timeout": 20})
    over = threading.Event()
    send_large(world, "a")
    monkeypatch.setattr(world.payloads, "get", lambda *_: over.wait(10) and b"")
    assert world.invoke(seconds=1.1) == ["a"]
    assert not over.is_set()
    over.set()
    assert world.changes() == [20]
    assert "error=no time was left before Lambda's timeout)" in caplog.text
