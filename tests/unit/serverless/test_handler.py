"""A function runs tasks as a worker does, and reports what Lambda must not delete."""

from __future__ import annotations

import base64
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
from support.badmessages import encoded, envelope, old_body
from support.factories import TIMEOUT
from support.lambda_function import CHANGES, ENDS_OF_PROCESSES, Invocation, note

from celery_sqs_visibility import OptionError, task_message
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.core.endings import OUTCOMES
from celery_sqs_visibility.core.settlements import RELEASE, Delete
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError, ThrottledError
from celery_sqs_visibility.events import DeliveryEnded, Released, subscribe
from celery_sqs_visibility.operate.metrics.emf import LOGGER, UNITS
from celery_sqs_visibility.serverless.handler import message_of, records_of

OLD = old_body(task="note", args=["a"])


def broken(body, attributes):
    raise KeyError(body)


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


def test_the_last_attempt_is_a_failure_and_a_dead_letter(world):
    handler = world.handler()
    world.send("bad")
    assert world.invoke(handler) == ["bad"]
    world.clock.advance(10)
    assert world.invoke(handler) == []
    assert [retries for _, retries, *_ in world.ran] == [0, 1]
    assert world.state("bad") == "FAILURE"
    assert world.letters() == ["failed at its last attempt"]
    assert factories.left(world.queue) == 0


def test_a_run_knows_its_queue_and_what_is_left_of_the_invocation(world):
    world.send("a")
    world.invoke(seconds=50)
    ((_, _, queue, remaining),) = world.ran
    assert queue == "q"
    assert remaining == pytest.approx(49, abs=2)


def test_a_run_may_have_its_message_hidden_for_longer(world):
    world.send("extend")
    assert world.invoke() == []
    assert world.changes() == [pytest.approx(100, abs=2)]


@pytest.mark.parametrize(
    ("refused", "raised"),
    [
        (AccessDeniedError("no right"), "TimeoutError: SQS has not confirmed .* for 10[01] s: no right"),
        (ReceiptHandleInvalidError("expired"), "VisibilityLostError: the message's visibility has lapsed"),
    ],
)
def test_a_run_is_told_where_its_message_cannot_be_hidden_for_longer(world, caplog, refused, raised):
    world.send("extend")
    world.sqs.fail_next(CHANGES, refused)
    assert world.invoke() == ["extend"]
    assert world.state("extend") == "RETRY"
    assert re.search(raised, caplog.text)


@pytest.mark.parametrize(
    ("key", "reported", "changes", "letters"),
    [("release", ["release"], [0], []), ("reject", [], [], ["rejected by the task"])],
)
def test_what_a_task_rejects_comes_back_or_is_a_dead_letter(world, key, reported, changes, letters):
    world.send(key)
    assert world.invoke() == reported
    assert world.changes() == changes
    assert world.letters() == letters


@pytest.mark.parametrize(("key", "failed"), [("a", []), ("bad", [])])
def test_a_stock_task_keeps_celerys_behaviour(world, key, failed):
    world.send(key, task="stock")
    assert world.invoke() == failed


def test_before_time_runs_out_the_rest_is_given_back(world):
    world.send("a", "b", "c", seconds=20)
    assert world.invoke(seconds=42) == ["c"]
    assert world.changes() == [0]
    assert factories.counts(world.queue) == (1, 0)


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


@pytest.mark.parametrize("task", ["note", "stock"])
def test_a_task_that_shuts_its_worker_down_ends_the_batch(world, caplog, task):
    world.send("a", "shutdown", "b", "c", task=task)
    assert world.invoke() == ["shutdown", "b", "c"]
    assert [key for key, *_ in world.ran] == ["a", "shutdown"]
    assert world.changes() == [0, 0]
    assert "a task of queue 'q' ended with WorkerShutdown(0)" in caplog.text


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


def test_several_records_become_messages_of_their_own(world):
    factories.send(world.queue, json.dumps(s3_notification(s3_record(), s3_record())))
    handler, event = world.handler(), world.event()
    assert handler(event, Invocation(60)) == {"batchItemFailures": []}
    assert world.ran == []
    assert factories.counts(world.queue) == (2, 1)


def test_several_records_that_cannot_be_sent_are_a_bad_message(make):
    world = make(letters=None)
    factories.send(world.queue, json.dumps(s3_notification(s3_record(), s3_record())))
    world.sqs.fail_next("SendMessageBatch", AccessDeniedError("no"))
    handler, event = world.handler(), world.event()
    assert len(handler(event, Invocation(60))["batchItemFailures"]) == 1
    assert factories.left(world.queue) == 1


def test_what_this_process_has_finished_and_lambda_has_not_deleted_does_not_run_again(world):
    handler = world.handler()
    world.send("a")
    handler(world.event(), Invocation(60))
    world.clock.advance(TIMEOUT)
    assert world.invoke(handler) == []
    assert [key for key, *_ in world.ran] == ["a"]
    assert factories.left(world.queue) == 0


def test_a_message_under_two_receipts_runs_once(world):
    world.send("a")
    (first,) = world.event()["Records"]
    world.clock.advance(TIMEOUT)
    (second,) = world.event()["Records"]
    assert world.handler()({"Records": [first, second]}, Invocation(60)) == {"batchItemFailures": []}
    assert [key for key, *_ in world.ran] == ["a"]


def test_an_adapter_that_raises_is_told_with_its_traceback(make, caplog):
    world = make(options={"message_adapter": f"{__name__}:broken"})
    factories.send(world.queue, "text")
    assert world.handler()(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert world.letters() == ["the message_adapter failed: KeyError('text')"]
    assert any(each.exc_info and each.exc_info[0] is KeyError for each in caplog.records)


def test_an_unknown_task_comes_back(world):
    world.send("a", task="unknown")
    assert world.invoke() == ["a"]
    assert factories.left(world.dead) == 0


@pytest.mark.parametrize(
    ("action", "key", "sentence"),
    [
        (
            CHANGES,
            "bad",
            "cannot hide or release messages of queue 'q', which takes sqs:ChangeMessageVisibility",
        ),
        ("SendMessage", "bad-last", "could not be sent, so the message comes back: no"),
    ],
)
def test_what_sqs_refuses_is_told_and_comes_back(make, caplog, action, key, sentence):
    world = make(most=1) if key == "bad-last" else make()
    world.send(key)
    error = AccessDeniedError("no") if action == CHANGES else ThrottledError("no")
    world.sqs.fail_next(action, error)
    assert world.invoke() == [key]
    assert sentence in caplog.text
    assert factories.left(world.queue) == 1


def test_an_error_of_ours_takes_nothing_with_it(world, monkeypatch, caplog):
    world.send("a", "b")
    handler = world.handler()
    monkeypatch.setattr(type(world.app), "uses_utc_timezone", lambda _: 1 / 0)
    assert world.invoke(handler) == ["a", "b"]
    assert "unexpected error with a message of 'q'" in caplog.text


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


def put_event(world, records):
    keys = [f"k{number}" for number in range(records)]
    factories.send(world.queue, json.dumps(s3_notification(*[s3_record(key=key) for key in keys])))
    return keys


def slow_sends(world, monkeypatch, seconds):
    send_batch = world.sqs.send_batch

    def slowly(queue_url, messages, **options):
        world.clock.advance(seconds)
        return send_batch(queue_url, messages, **options)

    monkeypatch.setattr(world.sqs, "send_batch", slowly)


def records_in(world):
    """The keys of the S3 objects in the queue's messages, which are not events any more."""
    bodies = [each.body for each in world.sqs._queues[world.queue.url].messages]
    return sorted(
        json.loads(json.loads(base64.b64decode(b))["body"])[0][0]["s3"]["object"]["key"] for b in bodies
    )


def event_of(world):
    """The one message with an event, or what is left of one, as Lambda receives it."""
    while True:
        found = [each for each in world.event()["Records"] if each["body"].startswith('{"Records"')]
        if found:
            return {"Records": found}


def test_an_event_keeps_within_the_time_that_is_left_and_goes_on_where_it_stopped(make, monkeypatch):
    world = make(letters=None)
    keys, handler = put_event(world, 300), world.handler()
    slow_sends(world, monkeypatch, 0.5)
    for _ in range(5):
        began, event = world.clock.monotonic(), event_of(world)
        assert handler(event, Invocation(6)) == {"batchItemFailures": []}
        assert world.clock.monotonic() - began <= 5
        world.sqs.delete(world.queue.url, [event["Records"][0]["receiptHandle"]])
        world.clock.advance(200)
    assert records_in(world) == sorted(keys)
    assert len(factories.requests(world.sqs, "SendMessageBatch")) == 30 + 4


def test_an_event_for_which_time_is_too_short_is_given_back(world):
    put_event(world, 30)
    answer = world.handler()(world.event(), Invocation(1.5))
    assert len(answer["batchItemFailures"]) == 1
    assert factories.counts(world.queue) == (1, 0)
    assert factories.requests(world.sqs, "SendMessageBatch") == []


def test_an_outage_of_sends_ends_in_time_and_repeats_a_batch_at_the_most(world, monkeypatch):
    keys, handler = put_event(world, 30), world.handler()
    for _ in range(100):
        world.sqs.fail_next("SendMessageBatch", ThrottledError("slow down"))
    began = world.clock.monotonic()
    event = world.event()
    assert len(handler(event, Invocation(10))["batchItemFailures"]) == 1
    assert world.clock.monotonic() - began <= 9
    world.sqs._failures.clear()
    world.clock.advance(200)
    event = world.event()
    assert handler(event, Invocation(10)) == {"batchItemFailures": []}
    world.sqs.delete(world.queue.url, [event["Records"][0]["receiptHandle"]])
    assert records_in(world) == sorted(keys)


@pytest.mark.parametrize(
    "message",
    [envelope(OLD, protocol=1), envelope(OLD, headers={"task": "note"})],
    ids=["Celery's first protocol", "the first in the second's headers"],
)
def test_messages_of_older_publishers_run(world, message):
    factories.send(world.queue, encoded(message))
    assert world.handler()(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert [key for key, *_ in world.ran] == ["a"]


def test_a_body_that_is_not_compressed_as_it_says_is_a_dead_letter(world):
    factories.send(world.queue, encoded(envelope([], headers={"task": "note", "compression": "zlib"})))
    assert world.handler()(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert len(world.letters()) == 1
    assert world.ran == []


def test_a_message_is_hidden_for_longer_without_a_lease_too_and_settled_once(world):
    handler, now = world.handler(), world.clock.monotonic()
    world.send("a")
    ((delivery, _, _),) = handler._decoded(world.event()["Records"], now + 60)
    delivery.extend(now + 100)
    assert delivery.settle(RELEASE)
    assert not delivery.settle(Delete())
    assert world.changes() == [100, 0]
    assert delivery.holder.done == set()


def test_what_was_not_run_and_sqs_does_not_show_is_told_and_not_taken_for_given_back(world, caplog):
    released = []
    end = subscribe(released.append, Released)
    world.send("a", "b", "c", seconds=20)
    world.sqs.fail_next(CHANGES, AccessDeniedError("no right"))
    assert world.invoke(seconds=42) == ["c"]
    assert "cannot hide or release messages of queue 'q'" in caplog.text
    assert world.invoke() == []
    assert released == []
    end()


def change_slowly(world, monkeypatch, seconds):
    """SQS takes `seconds` of the test's clock for each change of visibility."""
    change = world.sqs.change_visibility

    def slowly(*args, **options):
        world.clock.advance(seconds)
        return change(*args, **options)

    monkeypatch.setattr(world.sqs, "change_visibility", slowly)


def test_what_there_is_no_time_to_give_back_is_only_reported(world, monkeypatch, caplog):
    handler = world.handler()
    world.send("a", seconds=9)
    world.send(*map(str, range(200)))
    records = [record for _ in range(21) for record in world.event()["Records"]]
    change_slowly(world, monkeypatch, 0.1)
    until = world.clock.monotonic() + 10.5
    answer = handler({"Records": records}, Invocation(10.5))
    assert world.clock.monotonic() < until
    assert len(answer["batchItemFailures"]) == 200
    assert 0 < len(world.changes()) < 200
    assert caplog.text.count("cannot hide or release") == 1
    assert "no time was left before Lambda's timeout" in caplog.text


@pytest.mark.parametrize(
    ("keys", "receives", "action"),
    [
        (["a", "b"], 3, "change_visibility"),
        (["bad"], 3, "change_visibility"),
        (["bad"], 1, "send"),
        (["bad"], 1, "delete"),
    ],
    ids=["given back", "hidden", "a dead letter", "a question before a dead letter"],
)
def test_a_request_without_an_answer_does_not_outlast_the_function(
    make, monkeypatch, caplog, keys, receives, action
):
    world, over = make(most=receives), threading.Event()
    handler = world.handler()
    world.send(*keys, seconds=20.6)
    event = world.event()
    monkeypatch.setattr(world.sqs, action, lambda *_, **__: over.wait(10) and BatchResult({}))
    answer = handler(event, Invocation(21))
    assert not over.is_set()
    over.set()
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == [
        event["Records"][-1]["messageId"]
    ]
    assert "no time was left before Lambda's timeout" in caplog.text


LONG = 3600.5


def test_the_rest_of_a_rounded_delay_is_waited_for(world):
    world.send_with_eta("a", 1.4)
    due = world.clock.wall() + 1.4
    assert world.invoke() == []
    assert world.clock.wall() == pytest.approx(due)
    assert world.changes() == []


def test_what_is_due_does_not_wait_for_what_is_not(world):
    world.send_with_eta("later", 1.5)
    world.send("now")
    world.invoke()
    assert [key for key, *_ in world.ran] == ["now", "later"]


@pytest.mark.parametrize("name", ["q", "q.fifo"])
@pytest.mark.parametrize("seconds", [2.5, 20.5, LONG])
def test_a_wait_is_no_attempt(make, name, seconds):
    world = make(name)
    handler, due = world.handler(), world.clock.wall() + seconds
    world.send_with_eta("bad", seconds, group="g" if name.endswith(".fifo") else None)
    assert world.invoke(handler) == ["bad"]
    assert (world.changes(), world.ran) == ([int(seconds)], [])
    world.clock.advance(int(seconds))
    for attempt in (0, 1):
        world.invoke(handler)
        assert [retries for _, retries, *_ in world.ran] == [*range(attempt + 1)]
        assert world.clock.wall() >= due - 0.001
        world.clock.advance(10)
    assert world.letters() == ["failed at its last attempt"]


def test_where_the_queue_allows_one_receive_a_copy_waits(make):
    world = make(most=1)
    handler = world.handler()
    world.send_with_eta("a", 20.5)
    assert world.invoke(handler) == []
    assert (world.changes(), world.ran, factories.counts(world.queue)) == ([], [], (0, 0))
    world.clock.advance(20)
    world.invoke(handler)
    assert [(key, retries) for key, retries, *_ in world.ran] == [("a", 0)]


def test_what_does_not_fit_into_the_invocation_is_hidden_until_its_eta(world):
    world.send_with_eta("a", 1.5)
    assert world.invoke(seconds=2) == ["a"]
    assert (world.changes(), world.ran) == ([2], [])


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
