"""What a function hides, gives back and copies, in the time that is left of its invocation."""

import base64
import json
import re
import threading

import pytest
from support import factories
from support.aws_events import s3_notification, s3_record
from support.factories import TIMEOUT
from support.lambda_function import CHANGES, Invocation

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.core.settlements import RELEASE, Delete
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError, ThrottledError
from celery_sqs_visibility.events import Released, subscribe


def test_a_run_knows_its_queue_and_what_is_left_of_the_invocation(world):
    world.send("a")
    world.invoke(seconds=50)
    ((_, _, queue, remaining),) = world.ran
    assert queue == "q"
    assert remaining == 50


def test_a_run_may_have_its_message_hidden_for_longer(world):
    world.send("extend")
    assert world.invoke() == []
    assert world.changes() == [100]


@pytest.mark.parametrize(
    ("refused", "raised", "state"),
    [
        (
            AccessDeniedError("no right"),
            "TimeoutError: SQS has not confirmed .* for 100 s: no right",
            "RETRY",
        ),
        (
            ReceiptHandleInvalidError("expired"),
            "VisibilityLostError: the message's visibility has lapsed",
            "PENDING",  # another run may store the task's state
        ),
    ],
)
def test_a_run_is_told_where_its_message_cannot_be_hidden_for_longer(world, caplog, refused, raised, state):
    world.send("extend")
    world.sqs.fail_next(CHANGES, refused)
    assert world.invoke() == ["extend"]
    assert world.state("extend") == state
    assert re.search(raised, caplog.text)


def test_before_time_runs_out_the_rest_is_given_back(world):
    world.send("a", "b", "c", seconds=20)
    assert world.invoke(seconds=42) == ["c"]
    assert world.changes() == [0]
    assert factories.counts(world.queue) == (1, 0)


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
    for _ in range(100):  # a dead letter is tried again while there is time
        world.sqs.fail_next(action, error)
    assert world.invoke() == [key]
    assert sentence in caplog.text
    assert factories.left(world.queue) == 1


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
    bodies = [each.body for each in world.sqs.queues[world.queue.url].messages]
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

    def refuse(*_args, **_options):
        raise ThrottledError("slow down")

    began = world.clock.monotonic()
    event = world.event()
    with monkeypatch.context() as outage:
        outage.setattr(world.sqs, "send_batch", refuse)
        assert len(handler(event, Invocation(10))["batchItemFailures"]) == 1
    assert world.clock.monotonic() - began <= 9
    world.clock.advance(200)
    event = world.event()
    assert handler(event, Invocation(10)) == {"batchItemFailures": []}
    world.sqs.delete(world.queue.url, [event["Records"][0]["receiptHandle"]])
    assert records_in(world) == sorted(keys)


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
