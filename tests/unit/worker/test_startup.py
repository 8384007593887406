"""A worker connects once its queues are there: it waits where that helps, and else ends with a sentence."""

import json
import logging
import uuid
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu import Exchange, Queue
from support.clock import FakeClock
from support.exclusive_stores import Refusing
from support.factories import requests

from celery_sqs_visibility.aws.fake import ACCOUNT, ENDPOINT, REGION, FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ClockSkewError,
    CredentialsRefusedError,
    OverLimitError,
    QueueDoesNotExistError,
    RequestRefusedError,
    StoreError,
    StoreUnavailableError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import PredefinedQueue
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.transport import broker_clients
from celery_sqs_visibility.worker import startup as module
from celery_sqs_visibility.worker.startup import QueuesFirst, check_beat, reason_and_remedy

FIND = "GetQueueUrl"


class World:
    """A consumer that connects by `connect`; pauses take no time, and are noted."""

    def __init__(self, app, monkeypatch):
        self.app = app
        self.sqs = FakeSQS()
        self.pauses = []
        self.ended = []
        monkeypatch.setattr(module, "_sleep", self.pauses.append)
        monkeypatch.setattr(module, "pause", lambda failures: failures)
        monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: self.sqs)
        with app.connection_for_read() as connection:
            self.context = connection.transport.context
        monkeypatch.setattr(self.context, "end_broadcasts", lambda: self.ended.append(1))
        self.connection = SimpleNamespace(transport=SimpleNamespace(for_worker=False))
        self.consumer = SimpleNamespace(app=app, connect=lambda: self.connection)
        QueuesFirst(self.consumer)

    def fail(self, error, times=1):
        for _ in range(times):
            self.sqs.fail_next(FIND, error)

    def connect(self):
        return self.consumer.connect()


@pytest.fixture
def sqs_app():
    with Celery("w", set_as_current=False, broker=f"celery-sqs-visibility://{uuid.uuid4()}:s@") as app:
        app.conf.task_default_queue = "q"
        yield app


@pytest.fixture
def world(sqs_app, monkeypatch):
    return World(sqs_app, monkeypatch)


def test_a_worker_connects_when_its_queues_are_there_and_the_transport_knows_whose_it_is(world, caplog):
    caplog.set_level(logging.INFO)
    assert world.connect() is world.connection
    assert world.connection.transport.for_worker
    assert {url.rpartition("/")[2] for url in world.sqs.list_queues("q")} == {"q", "q-dead"}
    assert caplog.text.count("queue 'q' created at") == 1
    assert world.pauses == []


def test_a_queue_is_reported_at_the_start_and_not_whenever_the_worker_connects_anew(world, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        world.connect()
    assert caplog.text.count("visibility timeout") == 1


@pytest.mark.parametrize("error", [UnavailableError, ThrottledError, OverLimitError, ClockSkewError])
def test_an_error_that_passes_is_waited_for_with_growing_pauses(world, caplog, error):
    world.fail(error("not now"), 3)
    world.connect()
    assert world.pauses == [1, 2, 3]
    assert [record.levelname for record in caplog.records][:1] == ["ERROR"]
    assert "cannot find the queue" in caplog.text


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (AccessDeniedError("no"), "no. Grant the permission to the credentials that the worker uses."),
        (UnrecognizedResponseError("html"), "html. Correct the endpoint: it does not answer as SQS does."),
        (TLSError("expired"), "expired."),
    ],
)
def test_another_error_at_the_start_ends_the_worker_with_what_to_do(world, caplog, error, sentence):
    world.fail(error)
    with pytest.raises(WorkerShutdown) as end:
        world.connect()
    assert end.value.code == 1
    assert world.ended == [1], "queues of broadcasts that were made are deleted"
    critical = [each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL]
    assert critical == [f"cannot start, since queue 'q' cannot be used: {sentence}"]


def test_once_it_has_worked_a_worker_waits_for_whatever_error(world):
    world.connect()
    world.context.queues = Queues(world.sqs)
    world.fail(AccessDeniedError("no"), 2)
    world.connect()
    assert world.pauses == [1, 2]


@pytest.mark.parametrize(("retry", "waits"), [(False, False), (None, True), (True, True)])
def test_celerys_setting_says_whether_a_start_waits(world, caplog, retry, waits):
    world.app.conf.broker_connection_retry_on_startup = retry
    world.fail(UnavailableError("not now"))
    if waits:
        world.connect()
    else:
        with pytest.raises(WorkerShutdown):
            world.connect()
        assert "With broker_connection_retry_on_startup it would be waited for." in caplog.text


def test_a_queue_of_an_exchange_that_sqs_cannot_have_ends_the_worker_before_any_request(world, caplog):
    world.app.conf.task_queues = [Queue("q", Exchange("topics", "topic"))]
    with pytest.raises(WorkerShutdown) as end:
        world.connect()
    assert end.value.code == 1
    assert "cannot start, since queue 'q' cannot be consumed" in caplog.text
    assert world.sqs.calls == []


def test_a_dead_letter_queue_is_made_where_an_option_names_one(sqs_app, monkeypatch):
    sqs_app.conf.broker_transport_options = {"dead_letter_queue": "dead"}
    world = World(sqs_app, monkeypatch)
    world.connect()
    assert {url.rpartition("/")[2] for url in world.sqs.list_queues("")} == {"dead", "q"}
    assert len(requests(world.sqs, "GetQueueAttributes")) >= 1


def test_a_queue_that_is_not_there_is_to_be_created():
    told = reason_and_remedy(QueueDoesNotExistError("gone."))
    assert told == "gone. Create the queue, or correct its name or URL."


@pytest.fixture
def clock(monkeypatch):
    """One that waits turn."""
    clock = FakeClock()
    monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(module, "sleep", clock.advance)
    return clock


def test_a_pause_lasts_its_seconds(clock):
    before = clock.monotonic()
    module._sleep(1.5)
    assert clock.monotonic() == pytest.approx(before + 1.5)


def test_a_signal_ends_a_pause_at_the_next_look(clock, monkeypatch):
    before = clock.monotonic()
    monkeypatch.setattr(module, "sleep", lambda seconds: (clock.advance(seconds), stop()))

    def stop():
        if clock.monotonic() >= before + 1:
            state.should_stop = 0

    with pytest.raises(WorkerShutdown):
        module._sleep(30)
    assert clock.monotonic() == pytest.approx(before + 1, abs=0.2)


def test_a_signal_ends_a_pause_of_no_time_as_well(monkeypatch):
    monkeypatch.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        module._sleep(0)


OPTIONS = Options.parse({"visibility_timeout": 90})
PLACE = f"at {ENDPOINT}/{ACCOUNT}/app-a-b (region {REGION}, account {ACCOUNT}): "
DENIED = AccessDeniedError("not authorized")


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def queues(sqs):
    return Queues(sqs, prefix="app-")


@pytest.fixture
def report(sqs, caplog):
    """Report a queue whose policy was asked for; the record."""
    caplog.set_level(logging.INFO)

    def report(queue, redrive):
        redrive.get(queue, 0)
        requests = len(sqs.calls)
        module.report(queue, redrive, OPTIONS)
        assert len(sqs.calls) == requests
        return caplog.records[-1]

    return report


def policy(sqs, receives):
    arn = sqs.queue_attributes(sqs.create_queue("dead", {}, {}), ["QueueArn"])["QueueArn"]
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})}


@pytest.mark.parametrize(("receives", "times"), [(1, "1 receive"), (5, "5 receives")])
def test_a_queue_with_a_redrive_policy(sqs, queues, report, receives, times):
    sqs.create_queue("app-a-b", policy(sqs, receives), {})
    record = report(queues.find_or_create("a.b"), RedriveBook())
    assert record.getMessage() == (
        f"queue 'app-a-b' (Celery's 'a.b') found {PLACE}"
        f"dead letters go to 'dead' after {times}; visibility timeout 90 s"
    )
    assert record.sqs == {
        "queue": "a.b",
        "sqs_name": "app-a-b",
        "url": f"{ENDPOINT}/{ACCOUNT}/app-a-b",
        "region": REGION,
        "account": ACCOUNT,
        "origin": "found",
        "dead_letter_queue": "dead",
        "max_receive_count": receives,
        "visibility_timeout": 90,
        "weight": 1,
        "max_running": None,
        "not_allowed": [],
    }


@pytest.mark.parametrize("option", [True, False])
@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (None, "no redrive policy"),
        (DENIED, "redrive policy not known, since sqs:GetQueueAttributes is not allowed"),
        (UnavailableError("No answer."), "redrive policy not known, since No answer"),
    ],
)
def test_a_queue_without_a_redrive_policy_that_we_know_of(sqs, queues, report, error, policy, option):
    if error is not None:
        sqs.fail_next("GetQueueAttributes", error)
    letters = queues.find_or_create("letters")
    book = RedriveBook(lambda _: (lambda: letters) if option else None)
    record = report(queues.find_or_create("a.b"), book)
    told = "; dead letters go to 'app-letters', by the option dead_letter_queue"
    none = "" if error else " and no dead_letter_queue"
    assert f"created {PLACE}{policy}{told if option else none}; visibility" in record.getMessage()
    assert record.sqs["dead_letter_queue"] == ("app-letters" if option else None)
    assert record.sqs["not_allowed"] == (["sqs:GetQueueAttributes"] if error is DENIED else [])


def test_a_name_that_is_the_same_is_said_once(sqs, report):
    assert (
        report(Queues(sqs).find_or_create("a"), RedriveBook())
        .getMessage()
        .startswith("queue 'a' created at ")
    )


@pytest.mark.parametrize(
    ("order", "told"),
    [("fair", ""), ("strict", "; strict order, place 2"), ("weighted", "; weighted order, weight 3")],
)
def test_a_queue_with_options_of_its_own(sqs, caplog, order, told):
    caplog.set_level(logging.INFO)
    own = {"visibility_timeout": 600, "weight": 3, "max_running": 2}
    options = Options.parse({"queues": {"b": {}, "a": own}, "queue_order": order})
    module.report(Queues(sqs).find_or_create("a"), RedriveBook(), options)
    assert caplog.messages[-1].endswith(f"; visibility timeout 600 s{told}; 2 at once at the most")
    assert [caplog.records[-1].sqs[name] for name in own] == [600, 3, 2]


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, 0), ({"visibility_timeout": 12 * 3600}, 0), ({"visibility_timeout": 24 * 3600}, 1)],
)
def test_a_visibility_timeout_that_sqs_does_not_take_is_told(caplog, given, told):
    module.warn_of_clamped(given)
    assert caplog.text.count("visibility_timeout=86400 is longer than SQS hides a message") == told
    assert len(caplog.records) == told


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (None, []),
        (StoreUnavailableError("it does not answer"), []),  # its guard says so
        (StoreError("no such table; create it"), ["refuses: no such table; create it"]),
    ],
    ids=["well", "unreachable", "refusing"],
)
def test_a_store_of_keys_that_refuses_is_told_at_the_start(caplog, error, lines):
    module.ask_store(MemoryStore() if error is None else Refusing(error))
    assert [message[-len("refuses: no such table; create it") :] for message in caplog.messages] == lines


URL = "https://sqs.eu-west-1.amazonaws.com/1/q"


@pytest.fixture
def beat_app(sqs):
    with Celery("beat", set_as_current=False, broker=f"celery-sqs-visibility://{uuid.uuid4()}:s@") as app:
        app.conf.task_default_queue = "q"
        yield app


def use(app, queues):
    with app.connection_for_write() as connection:
        connection.transport.context.queues = queues


@pytest.mark.parametrize("error", [CredentialsRefusedError, RequestRefusedError, TLSError])
def test_wrong_settings_end_it_with_one_sentence_and_status_1(beat_app, sqs, caplog, error):
    use(beat_app, Queues(sqs))
    sqs.fail_next("GetQueueUrl", error("no."))
    with pytest.raises(SystemExit) as end:
        check_beat(beat_app)
    assert end.value.code == 1
    assert caplog.messages == ["beat cannot start: no."]
    assert caplog.records[0].levelno == logging.CRITICAL


def test_a_wrong_option_ends_it_too(beat_app, caplog):
    beat_app.conf.broker_transport_options = {"regin": 1}
    with pytest.raises(SystemExit):
        check_beat(beat_app)
    assert caplog.messages[0].startswith("beat cannot start: unknown transport option 'regin'")


def answered(code):
    """A refusal by SQS itself."""
    error = RequestRefusedError("no", code=code)
    error.__cause__ = ClientError({"Error": {"Code": code}}, "GetQueueUrl")
    return error


@pytest.mark.parametrize(
    "error",
    [None, AccessDeniedError("no"), UnavailableError("later"), answered("InvalidParameterValue")],
    ids=repr,
)
def test_a_queue_that_is_not_found_does_not(beat_app, sqs, caplog, error):
    use(beat_app, Queues(sqs))
    if error is not None:
        sqs.fail_next("GetQueueUrl", error)
    check_beat(beat_app)
    assert not caplog.messages
    assert [action for action, _ in sqs.calls] == ["GetQueueUrl"]


def test_of_a_predefined_queue_it_asks_for_its_attributes(beat_app, sqs):
    beat_app.conf.broker_transport_options = {"predefined_queues": {"q": {"url": URL}}}
    use(beat_app, Queues(sqs, predefined={"q": PredefinedQueue(URL)}))
    check_beat(beat_app)
    assert [action for action, _ in sqs.calls] == ["GetQueueAttributes"]


def test_another_broker_is_none_of_its_business(app):
    check_beat(app)
