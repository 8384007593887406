"""A worker connects once its queues are there: it waits where that helps, and else ends with a sentence."""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu import Exchange, Queue
from support.clock import FakeClock
from support.factories import requests

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ClockSkewError,
    OverLimitError,
    QueueDoesNotExistError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.transport import broker_clients
from celery_sqs_visibility.worker import startup as module
from celery_sqs_visibility.worker.startup import QueuesFirst, passes, reason_and_remedy

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


def test_an_error_of_tls_does_not_pass():
    assert passes(UnavailableError("no"))
    assert not passes(TLSError("no"))
    assert not passes(AccessDeniedError("no"))
    assert reason_and_remedy(TLSError("no.")) == "no."


def test_a_queue_that_is_not_there_is_to_be_created():
    told = reason_and_remedy(QueueDoesNotExistError("gone."))
    assert told == "gone. Create the queue, or correct its name or URL."


@pytest.fixture
def clock(monkeypatch):
    """One that waits turn."""
    clock = FakeClock()
    monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(module.threading, "Event", lambda: SimpleNamespace(wait=clock.advance))
    return clock


def test_a_pause_lasts_its_seconds(clock):
    before = clock.monotonic()
    module._sleep(1.5)
    assert clock.monotonic() == pytest.approx(before + 1.5)


def test_a_signal_ends_a_pause_at_the_next_look(clock, monkeypatch):
    before = clock.monotonic()
    monkeypatch.setattr(
        module.threading,
        "Event",
        lambda: SimpleNamespace(wait=lambda seconds: (clock.advance(seconds), stop())),
    )

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
