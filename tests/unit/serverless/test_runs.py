"""Runs in a function: failures, older publishers, and exclusive tasks, whose keys no thread renews."""

import base64
import json
import threading
from datetime import datetime

import pytest
from celery.exceptions import ImproperlyConfigured
from support import factories
from support.aws_events import s3_notification, s3_record
from support.badmessages import encoded, envelope, old_body
from support.lambda_function import Invocation, note

from celery_sqs_visibility.errors import (
    AccessDeniedError,
    StoreError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.exclusive import STORE_RETRY_SECONDS
from celery_sqs_visibility.stores.port import Acquired, Processed, Processing

STORE = {"coordination_store": "redis://keys"}


HIDDEN_SECONDS = 30


def copies(world):
    """The messages that were sent after the first."""
    return [each["message"].body for each in factories.requests(world.sqs, "SendMessage")[1:]]


def seconds_until(body):
    eta = json.loads(base64.b64decode(body))["headers"]["eta"]
    return datetime.fromisoformat(eta).timestamp() - SYSTEM_CLOCK.wall()


@pytest.fixture
def make_exclusive(make):
    def make_exclusive(name="q", options=STORE, **queue):
        world = make(name, options, **queue)
        settings = {"error_visibility_timeout": [10], "max_retries": 1}
        world.app.task(note, bind=True, name="one", shared=False, exclusive=True, **settings)
        return world

    return make_exclusive


@pytest.fixture
def world(make_exclusive):
    return make_exclusive()


def test_a_success_is_processed_and_a_duplicate_is_skipped(world):
    handler, before = world.handler(), set(threading.enumerate())
    world.send("a", task="one")
    world.send("a", task="one")
    assert world.invoke(handler) == []
    assert [key for key, *_ in world.ran] == ["a"]
    assert world.state("a") == "SUCCESS"
    assert world.keys.acquire("one:a", "other", 1) == Processed()
    assert not set(threading.enumerate()) - before


def test_a_failure_frees_the_key_for_the_next_attempt(world):
    world.send("bad", task="one")
    assert world.invoke() == ["bad"]
    assert world.changes() == [10]
    assert isinstance(world.keys.acquire("one:bad", "other", 1), Acquired)


def test_the_lease_ends_with_the_invocation(world):
    world.send("a", task="one")
    left = []
    world.app.tasks["one"].run = lambda *_: left.append(world.keys.acquire("one:a", "other", 1))
    world.invoke(seconds=50)
    assert [type(each) for each in left] == [Processing]
    assert left[0].seconds == 50


def test_a_message_whose_key_is_taken_waits_as_a_copy_without_failing(world):
    world.send("waits", task="one")
    world.keys.acquire("one:waits", "another/run", HIDDEN_SECONDS)
    assert world.invoke() == []
    assert (world.ran, world.state("waits")) == ([], "PENDING")
    assert seconds_until(copies(world)[0]) == HIDDEN_SECONDS


def test_waiting_for_a_key_costs_no_attempt(world):
    handler = world.handler()
    world.send("bad", task="one")
    world.keys.acquire("one:bad", "another/run", 3 * HIDDEN_SECONDS)
    for number in range(3):
        world.keys.acquire("one:bad", f"another/{number}", HIDDEN_SECONDS)
        assert world.invoke(handler) == []
        world.clock.advance(HIDDEN_SECONDS)
    assert world.ran == []
    world.clock.advance(2 * HIDDEN_SECONDS)
    assert world.invoke(handler) == ["bad"]
    assert [retries for _, retries, *_ in world.ran] == [0]


def test_a_run_that_goes_on_elsewhere_is_not_failed_however_often_its_message_comes(make_exclusive):
    """A FIFO queue takes no copy, so each wait is a receive: more than all attempts, and the forgiven."""
    world = make_exclusive("q.fifo", most=50)
    handler = world.handler()
    world.send("runs", task="one", group="g")
    world.app.backend.store_result("runs", None, "STARTED")
    for number in range(9):
        world.keys.acquire("one:runs", f"another/{number}", HIDDEN_SECONDS)
        assert world.invoke(handler) == ["runs"]
        world.clock.advance(HIDDEN_SECONDS + 1)
    assert (world.ran, world.state("runs")) == ([], "STARTED")


@pytest.mark.parametrize("name", ["q", "q.fifo"])
def test_where_no_copy_can_be_sent_it_is_hidden_and_reported(make_exclusive, name):
    world = make_exclusive(name)
    world.send("waits", task="one", group="g" if name.endswith(".fifo") else None)
    world.keys.acquire("one:waits", "another/run", HIDDEN_SECONDS)
    if name == "q":
        world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    assert world.invoke() == ["waits"]
    assert world.changes() == [HIDDEN_SECONDS]
    assert (world.ran, world.state("waits")) == ([], "PENDING")


def test_while_the_store_is_away_nothing_runs_and_nothing_is_lost(world, monkeypatch, caplog):
    def fail(*_):
        raise StoreError("it is down")

    world.send("waits", task="one")
    monkeypatch.setattr(world.keys, "acquire", fail)
    assert world.invoke() == []
    assert seconds_until(copies(world)[0]) == STORE_RETRY_SECONDS
    assert world.ran == []
    assert "its key cannot be acquired: it is down" in caplog.text


def test_two_notifications_of_one_upload_are_one_run(make):
    """The example of docs/aws-events.md."""

    def arrival(args, kwargs):
        stored = args[0]["s3"]
        return f"{stored['bucket']['name']}/{stored['object']['key']}/{stored['object']['sequencer']}"

    def import_once(record):
        world.ran.append(record["s3"]["object"]["sequencer"])

    world = make(options=STORE)
    world.app.task(name="once", shared=False, exclusive=arrival, sqs_event="s3:ObjectCreated:*")(import_once)
    again = s3_record()
    again["s3"]["object"]["sequencer"] = "later"
    factories.send(
        world.queue, *[json.dumps(s3_notification(each)) for each in (s3_record(), s3_record(), again)]
    )
    assert world.invoke() == []
    assert world.ran == ["0055AED6DCD90281E5", "later"]


def test_without_a_store_the_handler_is_not_made(make_exclusive):
    with pytest.raises(ImproperlyConfigured, match="task 'one' is exclusive, and no store is named"):
        make_exclusive(options={}).handler()


OLD = old_body(task="note", args=["a"])


def broken(body, attributes):
    raise KeyError(body)


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


@pytest.mark.parametrize("task", ["note", "stock"])
def test_a_task_that_shuts_its_worker_down_ends_the_batch(world, caplog, task):
    world.send("a", "shutdown", "b", "c", task=task)
    assert world.invoke() == ["shutdown", "b", "c"]
    assert [key for key, *_ in world.ran] == ["a", "shutdown"]
    assert world.changes() == [0, 0]
    assert "a task of queue 'q' ended with WorkerShutdown(0)" in caplog.text


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


def test_an_error_of_ours_takes_nothing_with_it(world, monkeypatch, caplog):
    world.send("a", "b")
    handler = world.handler()
    monkeypatch.setattr(type(world.app), "uses_utc_timezone", lambda _: 1 / 0)
    assert world.invoke(handler) == ["a", "b"]
    assert "unexpected error with a message of 'q'" in caplog.text


@pytest.mark.parametrize(
    "message",
    [envelope(OLD, protocol=1), envelope(OLD, headers={"task": "note"})],
    ids=["Celery's first protocol", "the first in the second's headers"],
)
def test_messages_of_older_publishers_run(world, message):
    factories.send(world.queue, encoded(message))
    assert world.handler()(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert [key for key, *_ in world.ran] == ["a"]
