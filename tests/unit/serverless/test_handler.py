"""A function runs tasks as a worker does, and reports what Lambda must not delete."""

from __future__ import annotations

import json

import pytest
from celery import Celery, Task
from celery.exceptions import ImproperlyConfigured, Reject
from support import factories
from support.app import without_shared_tasks
from support.aws_events import s3_notification, s3_record
from support.clock import FakeClock
from support.factories import EVERYTHING

from celery_sqs_visibility import OptionError, VisibilityTask, lambda_handler, message
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.serverless.sqs_event import MEMBERS
from celery_sqs_visibility.transport import broker_clients, broker_context

CHANGES = "ChangeMessageVisibilityBatch"
RAN = []


def note(self, key, seconds=0):
    """`sleep` is the test's clock going on; the key says what becomes of it."""
    sqs, visibility = self.request.sqs, self.visibility
    RAN.append((key, self.request.retries, sqs["queue"], visibility.remaining()))
    self.app.test_clock.advance(seconds)
    if key == "extend":
        visibility.extend(100)
    if key == "reject":
        raise Reject("no", requeue=False)
    if key == "release":
        visibility.release()
    if key.startswith("bad"):
        raise ValueError(key)


def broken(body, attributes):
    raise KeyError(body)


class World:
    """A queue of a fake SQS, an app, and Lambda, which receives for it."""

    def __init__(self, monkeypatch, name="q", options=None, **queue):
        RAN.clear()
        without_shared_tasks(monkeypatch)
        # The leases of tasks count by the system's clock.
        self.clock = FakeClock(SYSTEM_CLOCK.monotonic())
        self.sqs = FakeSQS(self.clock)
        monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: self.sqs)
        monkeypatch.setattr(broker_context, "_contexts", {})
        monkeypatch.setattr(lease_table, "_lease_table", None)
        self.dead = factories.queue(self.sqs, "dead")
        self.queue = factories.queue(self.sqs, name, **({"letters": self.dead} | queue))
        self.app = Celery("function", set_as_current=False, task_cls=VisibilityTask)
        self.app.test_clock = self.clock
        self.app.conf.update(
            broker_transport="celery_sqs_visibility",
            broker_transport_options=options or {},
            result_backend="cache+memory://",
            task_store_errors_even_if_ignored=True,
        )
        settings = {"error_visibility_timeout": [10, 60], "max_retries": 1}
        self.app.task(note, bind=True, name="note", shared=False, sqs_event="s3:*", **settings)
        self.app.task(note, bind=True, name="stock", base=Task, shared=False, acks_late=True)

    def handler(self):
        return lambda_handler(self.app, clock=self.clock)

    def send(self, *keys, task="note", group=None, **kwargs):
        factories.send(self.queue, *[message(task, [key], kwargs, task_id=key) for key in keys], group=group)

    def event(self):
        """What Lambda receives, and its event source mapping makes of it."""
        return {
            "Records": [self.record(each) for each in self.sqs.receive(self.queue.url, 10, 0, EVERYTHING)]
        }

    def record(self, received):
        arn = self.sqs.queue_attributes(self.queue.url, ["QueueArn"])["QueueArn"]
        members = {name: received[theirs] for name, theirs in MEMBERS.items() if theirs in received}
        return {**members, "messageAttributes": {}, "eventSource": "aws:sqs", "eventSourceARN": arn}

    def invoke(self, handler=None, seconds=60):
        """Call the function as Lambda does, which deletes what is not reported; the keys that are."""
        event = self.event()
        answer = json.loads(json.dumps((handler or self.handler())(event, Invocation(seconds))))
        failed = [each["itemIdentifier"] for each in answer.pop("batchItemFailures")]
        assert answer == {}
        bodies = {each["messageId"]: each for each in event["Records"]}
        done = [each["receiptHandle"] for each in event["Records"] if each["messageId"] not in failed]
        if done:
            self.sqs.delete(self.queue.url, done)
        return [json.loads(bodies[each]["body"])["headers"]["id"] for each in failed]

    def changes(self):
        return [seconds for batch in factories.entries(self.sqs, CHANGES) for _, seconds in batch]

    def state(self, key):
        return self.app.AsyncResult(key).state

    def letters(self):
        return [
            each["MessageAttributes"]["reason"]["StringValue"]
            for each in self.sqs.receive(self.dead.url, 10, 0, EVERYTHING)
        ]


class Invocation:
    """Lambda's context object."""

    def __init__(self, seconds):
        self._milliseconds = int(seconds * 1000)

    def get_remaining_time_in_millis(self):
        return self._milliseconds


@pytest.fixture
def make(monkeypatch):
    worlds = []

    def make(name="q", options=None, **queue):
        worlds.append(World(monkeypatch, name, options, **queue))
        return worlds[-1]

    yield make
    for world in worlds:
        world.app.close()


@pytest.fixture
def world(make):
    return make()


def test_what_succeeds_is_left_to_lambda_and_what_fails_is_hidden_and_reported(world):
    world.send("a", "bad", "b")
    assert world.invoke() == ["bad"]
    assert [key for key, *_ in RAN] == ["a", "bad", "b"]
    assert world.changes() == [10]
    assert [world.state(key) for key in ("a", "bad", "b")] == ["SUCCESS", "RETRY", "SUCCESS"]
    assert factories.counts(world.queue) == (0, 1)
    assert factories.requests(world.sqs, "GetQueueUrl") == []


def test_the_last_attempt_is_a_failure_and_a_dead_letter(world):
    handler = world.handler()
    world.send("bad")
    assert world.invoke(handler) == ["bad"]
    world.clock.advance(10)
    assert world.invoke(handler) == []
    assert [retries for _, retries, *_ in RAN] == [0, 1]
    assert world.state("bad") == "FAILURE"
    assert world.letters() == ["failed at its last attempt"]
    assert factories.left(world.queue) == 0


def test_a_run_knows_its_queue_and_what_is_left_of_the_invocation(world):
    world.send("a")
    world.invoke(seconds=50)
    ((_, _, queue, remaining),) = RAN
    assert queue == "q"
    assert remaining == pytest.approx(49, abs=2)


def test_a_run_may_have_its_message_hidden_for_longer(world):
    world.send("extend")
    assert world.invoke() == []
    assert world.changes() == [pytest.approx(100, abs=2)]


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
    assert [key for key, *_ in RAN] == ["bad-1", "other"]
    assert world.changes() == [10, 0]
    assert world.invoke() == []
    world.clock.advance(10)
    world.invoke()
    assert [key for key, *_ in RAN] == ["bad-1", "other", "bad-1", "after"]


def test_events_run_tasks(world):
    factories.send(world.queue, json.dumps(s3_notification()))
    world.app.tasks["note"].run = lambda record: RAN.append(record["eventName"])
    handler = world.handler()
    assert handler(world.event(), Invocation(60)) == {"batchItemFailures": []}
    assert RAN == ["ObjectCreated:Put"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("no task", "its body is neither a JSON object nor base64 of one"),
        (
            message("note").replace('"retries": 0', '"retries": "x"'),
            "its task is invalid: 'retries' should be",
        ),
        (json.dumps({"properties": {}}), "its headers name no task"),
        (
            message("note").replace("application/json", "application/x-python-serialize"),
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
    assert RAN == []
    assert factories.counts(world.queue) == (2, 1)


def test_several_records_that_cannot_be_sent_are_a_bad_message(make):
    world = make(letters=None)
    factories.send(world.queue, json.dumps(s3_notification(s3_record(), s3_record())))
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    handler, event = world.handler(), world.event()
    assert len(handler(event, Invocation(60))["batchItemFailures"]) == 1
    assert factories.left(world.queue) == 1


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


def test_a_far_eta_is_hidden_until_then(world):
    body = json.loads(message("note", ["a"], task_id="a"))
    body["headers"]["eta"] = "2033-05-18T03:33:20+00:00"
    factories.send(world.queue, json.dumps(body))
    assert world.invoke() == ["a"]
    assert RAN == []
    assert factories.counts(world.queue) == (0, 1)


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
    assert [queue for _, _, queue, _ in RAN] == ["orders"]
