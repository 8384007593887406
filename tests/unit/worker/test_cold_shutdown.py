"""Whoever asks for a cold shutdown, the event loop begins it, unless it does not come by any more."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import signals
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import WorkerTerminate
from celery.worker import state

from celery_sqs_visibility.worker.cold_shutdown import PATIENCE, SIGNALS, ColdShutdown

DESCRIPTORS = Path("/proc/self/fd")


class Hub:
    """An event loop that turns when it is told to."""

    def __init__(self):
        self.readers = {}

    def add_reader(self, descriptor, callback):
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor):
        del self.readers[descriptor]

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


class Time:
    """A clock that stands still."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def consumer_with(*jobs):
    """A consumer whose pool knows those jobs."""
    pool = SimpleNamespace(terminate_job=print, _pool=SimpleNamespace(_cache=dict(enumerate(jobs))))
    conf = SimpleNamespace(worker_soft_shutdown_timeout=7)
    return SimpleNamespace(hub=Hub(), pool=pool, app=SimpleNamespace(conf=conf), hostname="worker@host")


class Drain:
    """A drain that only keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def ask(self, *args):
        self.asked.append(args)


@pytest.fixture
def cold(told):
    cold = ColdShutdown(consumer_with(), Drain())
    cold.take_over()
    yield cold
    cold.forget()


@pytest.fixture
def consumer(cold):
    return cold.consumer


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
    consumer.hub.readers.clear()
    signal.raise_signal(signal.SIGQUIT)
    assert told == [signal.SIGQUIT]


def test_where_the_loop_is_being_left_the_handler_is_called(consumer, told):
    state.should_stop = 0  # as SIGTERM sets it
    signal.raise_signal(signal.SIGQUIT)
    assert told == [signal.SIGQUIT]


def test_it_is_begun_at_once_where_the_loop_will_not(cold, told):
    cold.begin()
    assert told == []
    signal.raise_signal(signal.SIGQUIT)
    cold.begin()
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


def test_a_consumer_that_starts_again_is_asked_once(cold, consumer, told):
    consumer.hub.readers.clear()
    cold.take_over()
    signal.raise_signal(signal.SIGQUIT)
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()
    assert told == [signal.SIGQUIT]


def test_a_handler_that_is_not_celerys_is_left_alone(told):
    def theirs(_number, _frame):
        told.append("theirs")

    signal.signal(signal.SIGTERM, theirs)
    cold = ColdShutdown(consumer_with(), Drain())
    cold.take_over()
    assert signal.getsignal(signal.SIGTERM) is theirs
    cold.forget()


@pytest.mark.parametrize("accepted", [True, False])
def test_a_run_that_was_sent_is_waited_for_until_it_is_accepted(told, accepted):
    job = SimpleNamespace(_write_to=object(), _accepted=False)
    consumer, clock = consumer_with(job), Time()
    cold = ColdShutdown(consumer, Drain(), clock)
    cold.take_over()
    signal.raise_signal(signal.SIGQUIT)
    for _ in range(3):
        consumer.hub.turn()
    assert told == []
    if accepted:
        job._accepted = True
    else:
        clock.now += PATIENCE
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()
    assert told == [signal.SIGQUIT]
    cold.forget()


def test_a_run_that_waits_for_a_process_is_not(consumer, told):
    consumer.pool._pool._cache[0] = SimpleNamespace(_write_to=None, _accepted=False)
    signal.raise_signal(signal.SIGQUIT)
    with pytest.raises(WorkerTerminate):
        consumer.hub.turn()


def test_a_pool_that_cannot_end_its_runs_is_drained_within_the_soft_timeout(told):
    consumer, drain, sent = consumer_with(), Drain(), []
    consumer.pool = SoloPool(1)
    cold = ColdShutdown(consumer, drain)
    cold.take_over()

    def on_shutting_down(**facts):
        sent.append((facts["sig"], facts["how"], facts["exitcode"]))

    signals.worker_shutting_down.connect(on_shutting_down)
    for _ in range(2):
        signal.raise_signal(signal.SIGQUIT)
    assert drain.asked == [(7, 1), (0, 1)], "who asks twice does not want to wait"
    assert sent == [("SIGQUIT", "Cold", 1)]
    assert state.should_stop == 1
    assert told == []
    cold.forget()


def pipes():
    """This process's, whoever they belong to."""
    links = set()
    for descriptor in DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed meanwhile
            links.add(str(descriptor.readlink()))
    return {link for link in links if link.startswith("pipe:")}


def test_nothing_is_left_of_a_worker_that_has_stopped(told):
    consumer = consumer_with()
    before = pipes()
    cold = ColdShutdown(consumer, Drain())
    cold.take_over()
    made = pipes() - before
    assert made
    cold.forget()
    assert consumer.hub.readers == {}
    assert not made & pipes()
