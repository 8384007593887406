"""Whoever asks for a cold shutdown, the event loop begins it, unless it does not come by any more."""

from __future__ import annotations

import os
import select
import signal
from types import SimpleNamespace

import pytest
from celery import signals
from celery.bootsteps import CLOSE, RUN
from celery.exceptions import WorkerTerminate
from celery.worker import state

from celery_sqs_visibility import cold_shutdown
from celery_sqs_visibility.cold_shutdown import SIGNALS, defer_cold_shutdown


class Hub:
    """An event loop that turns when it is told to."""

    def __init__(self):
        self.readers = {}

    def add_reader(self, descriptor, callback):
        self.readers[descriptor] = callback

    def turn(self):
        readable, _, _ = select.select(list(self.readers), [], [], 0)
        for descriptor in readable:
            self.readers[descriptor]()


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Celery's, and its flags, and ours as they were before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    monkeypatch.setattr(cold_shutdown, "_latest", None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def told():
    """The signals that Celery's handler was told."""
    numbers = []

    def worker_Cold(number, _frame):  # noqa: N802 - Celery's name
        numbers.append(number)
        state.should_terminate = 1

    signal.signal(signal.SIGQUIT, worker_Cold)
    return numbers


@pytest.fixture
def consumer(told):
    consumer = SimpleNamespace(hub=Hub(), blueprint=SimpleNamespace(state=RUN))
    defer_cold_shutdown(consumer)
    return consumer


def test_the_loop_begins_it_and_ends(consumer, told):
    signal.raise_signal(signal.SIGQUIT)
    assert told == []
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()
    assert told == [signal.SIGQUIT]
    consumer.hub.turn()
    assert told == [signal.SIGQUIT]


def test_who_asks_twice_does_not_wait(consumer, told):
    for _ in range(2):
        signal.raise_signal(signal.SIGQUIT)
    assert told == [signal.SIGQUIT]
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()
    assert told == [signal.SIGQUIT]


def test_where_the_loop_is_left_the_handler_is_called(consumer, told):
    consumer.blueprint.state = CLOSE
    signal.raise_signal(signal.SIGQUIT)
    assert told == [signal.SIGQUIT]


def test_where_the_loop_is_being_left_the_handler_is_called(consumer, told):
    state.should_stop = 0  # as SIGTERM sets it
    signal.raise_signal(signal.SIGQUIT)
    assert told == [signal.SIGQUIT]


def test_a_warm_shutdown_does_not_make_it_forgotten(consumer, told):
    signal.raise_signal(signal.SIGQUIT)
    signals.worker_shutting_down.send(sender="worker@host", sig="SIGTERM", how="Warm", exitcode=0)
    assert told == [signal.SIGQUIT]


def test_a_forked_child_does_not_ask_its_parents_loop(consumer, told):
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGQUIT)
        os._exit(len(told))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    consumer.hub.turn()
    assert told == []


def test_a_consumer_that_starts_again_is_asked_once(consumer, told):
    consumer.hub.readers.clear()
    defer_cold_shutdown(consumer)
    signal.raise_signal(signal.SIGQUIT)
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()
    assert told == [signal.SIGQUIT]


def test_a_handler_that_is_not_celerys_is_left_alone(told):
    def theirs(_number, _frame):
        told.append("theirs")

    signal.signal(signal.SIGTERM, theirs)
    defer_cold_shutdown(SimpleNamespace(hub=Hub(), blueprint=SimpleNamespace(state=RUN)))
    assert signal.getsignal(signal.SIGTERM) is theirs
