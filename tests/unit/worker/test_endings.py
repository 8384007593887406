"""Every way in which a worker may end leads to its drain, and to none when it has stopped."""

from __future__ import annotations

import math
import os
import threading
from types import SimpleNamespace

import pytest
from celery import signals
from celery.worker import state

from celery_sqs_visibility.worker import endings
from celery_sqs_visibility.worker.drain import Drain
from celery_sqs_visibility.worker.endings import Endings


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The seconds that drains were asked for."""
    seconds = []
    monkeypatch.setattr(Drain, "ask", lambda _drain, timeout=None: seconds.append(timeout))
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    return seconds


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """One entry for each time that a drain was told not to wait for polls in flight."""
    times = []
    monkeypatch.setattr(Drain, "hurry", lambda _drain: times.append(True))
    return times


@pytest.fixture
def consumer():
    broker = SimpleNamespace(
        options=SimpleNamespace(shutdown_timeout=20), queue_consumers=[], worker_queue_consumers=[]
    )
    connection = SimpleNamespace(transport=SimpleNamespace(context=broker))
    return SimpleNamespace(connection=connection, hub=None)


@pytest.fixture
def ending(consumer):
    ending = Endings(consumer)
    ending.create(consumer)
    ending.start(consumer)
    yield ending
    ending.shutdown(consumer)


def tell(how, sig="SIGTERM"):
    """As Celery's signal handlers do."""
    signals.worker_shutting_down.send(sender="worker@host", sig=sig, how=how, exitcode=0)


def drains():
    """The drains that wait to be asked."""
    return [thread for thread in threading.enumerate() if thread.name == "sqs-drain"]


@pytest.mark.usefixtures("ending")
def test_a_warm_shutdown_drains(asked):
    tell("Warm")
    assert asked == [None]


@pytest.mark.usefixtures("ending")
def test_a_cold_shutdown_does_not_but_celery_gets_no_more_messages(asked, consumer):
    stopped = []
    consumer.connection.transport.context.worker_queue_consumers.append(
        SimpleNamespace(stop_polling=lambda: stopped.append(1))
    )
    tell("Cold")
    assert asked == []
    assert stopped == [1]


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(
    ("told", "hurries"),
    [
        ([("Warm", "SIGTERM")], 0),
        ([("Warm", "SIGINT")], 0),
        ([("Warm", "SIGTERM")] * 2, 1),
        ([("Warm", "SIGTERM"), ("Cold", "SIGQUIT")], 1),
        ([("Cold", "SIGQUIT")], 1),
    ],
)
def test_a_second_signal_and_a_cold_shutdown_do_not_wait_for_polls(hurried, told, hurries):
    for how, sig in told:
        tell(how, sig)
    assert len(hurried) == hurries


def test_ctrl_c_at_a_terminal_does_not_wait_for_polls(monkeypatch, consumer, hurried):
    monkeypatch.setattr(os, "isatty", lambda _descriptor: True)
    ending = Endings(consumer)
    ending.start(consumer)
    tell("Warm", "SIGTERM")
    assert hurried == []
    ending.shutdown(consumer)
    ending = Endings(consumer)
    ending.start(consumer)
    tell("Warm", "SIGINT")
    assert hurried == [True]
    ending.shutdown(consumer)


@pytest.mark.usefixtures("ending")
def test_a_stop_without_a_signal_lets_runs_end(consumer, asked):
    consumer.close()
    assert asked == [math.inf]


@pytest.mark.usefixtures("ending")
def test_a_close_in_a_cold_shutdown_does_not_drain(consumer, asked):
    state.should_terminate = 1
    consumer.close()
    assert asked == []


def test_a_consumer_that_starts_again_has_one_drain(consumer, ending):
    before = len(drains())
    ending.start(consumer)
    assert len(drains()) == before


def test_nothing_is_asked_before_the_start_or_after_the_end(consumer, asked):
    before = drains()
    ending = Endings(consumer)
    ending.create(consumer)
    consumer.close()
    ending.start(consumer)
    [thread] = [thread for thread in drains() if thread not in before]
    ending.shutdown(consumer)
    tell("Warm")
    consumer.close()
    assert asked == []
    assert endings._of_this_process is None
    thread.join(10)
    assert not thread.is_alive()
