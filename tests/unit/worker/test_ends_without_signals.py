"""A worker that ends by a command, an error or SIGHUP drains as one that gets a signal, and tells tasks."""

from __future__ import annotations

import atexit
import math
import signal
import sys
from types import SimpleNamespace

import pytest
from celery import signals
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import state
from celery.worker.consumer.connection import Connection

from celery_sqs_visibility.worker import bootsteps as module
from celery_sqs_visibility.worker.bootsteps import Deliveries, Endings, restart_by_module

HOSTNAME = "worker@host"
SOFT_TIMEOUT = 7


class StubDrain:
    """Notes what it is asked for."""

    def __init__(self, consumer):
        self.calls = consumer.calls
        self.interrupts_main_thread = False

    def start(self):
        self.calls.append("start")

    def begin(self, timeout=None, *, cold=False):
        self.calls.append(("begin", timeout, cold))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: self.calls.append(name)


@pytest.fixture
def leases(monkeypatch):
    """What tasks and the event loop are told."""
    told = []
    table = SimpleNamespace(stop=lambda: told.append("stop"), wake=lambda: told.append("wake"))
    monkeypatch.setattr(module, "lease_table", lambda: table)
    return told


@pytest.fixture
def consumer():
    return SimpleNamespace(
        calls=[],
        connection=SimpleNamespace(transport=SimpleNamespace(context=SimpleNamespace())),
        controller=SimpleNamespace(exitcode=None),
        hostname=HOSTNAME,
        app=SimpleNamespace(conf=SimpleNamespace(worker_soft_shutdown_timeout=SOFT_TIMEOUT)),
        connect=lambda: None,
    )


@pytest.fixture
def ending(consumer, monkeypatch, leases):
    monkeypatch.setattr(module, "Drain", StubDrain)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)}
    ending = Endings(consumer)
    ending.create(consumer)
    ending.start(consumer)
    consumer.calls.clear()
    yield ending
    ending.shutdown(consumer)
    for number, handler in before.items():
        signal.signal(number, handler)


def tell(how, sig):
    signals.worker_shutting_down.send(sender=HOSTNAME, sig=sig, how=how, exitcode=0)


def test_the_command_shutdown_ends_a_worker_as_sigterm_does(ending, consumer, leases):
    consumer.connection.transport.context.on_remote_shutdown()
    assert state.should_stop == 0
    assert (consumer.calls, leases) == ([("begin", None, False)], ["stop"])


@pytest.mark.usefixtures("ending")
def test_a_second_signal_wakes_the_event_loop_and_the_first_does_not(consumer, leases):
    tell("Warm", "SIGTERM")
    assert leases == ["stop"]
    tell("Warm", "SIGTERM")
    assert leases == ["stop", "stop", "wake"]
    assert consumer.calls == [("begin", None, False), "hurry", ("begin", None, False)]


@pytest.mark.usefixtures("ending", "leases")
def test_a_cold_end_is_a_failure_and_a_warm_one_leaves_the_status_to_celery(consumer):
    tell("Warm", "SIGTERM")
    assert consumer.controller.exitcode is None
    tell("Cold", "SIGQUIT")
    assert consumer.controller.exitcode == 1
    tell("Cold", "SIGQUIT")
    assert [each for each in consumer.calls if each[0] == "begin"] == [
        ("begin", None, False),
        ("begin", SOFT_TIMEOUT, True),
        ("begin", 0, True),
    ]


@pytest.mark.usefixtures("ending")
def test_a_worker_that_closes_gives_its_runs_all_their_time_and_tells_them(consumer, leases):
    consumer.close()
    assert (consumer.calls, leases) == ([("begin", math.inf, False)], ["stop"])


@pytest.mark.usefixtures("ending", "leases")
@pytest.mark.parametrize(
    ("reason", "before", "status"),
    [
        (WorkerTerminate(74), None, 74),
        (WorkerTerminate(74), 1, 1),
        (WorkerShutdown(0), None, None),
        (OSError("too many open files"), None, None),
    ],
)
def test_the_status_with_which_celery_gives_up_is_kept(consumer, reason, before, status):
    consumer.controller.exitcode = before
    try:
        raise reason
    except type(reason):
        consumer.close()
    assert consumer.controller.exitcode == status


@pytest.mark.usefixtures("leases")
def test_the_end_of_a_worker_finishes_its_drain_before_its_queues_go(ending, consumer):
    ending.shutdown(consumer)
    assert consumer.calls == ["finish", "cancel", "end_broadcasts"]
    ending.shutdown(consumer)
    assert len(consumer.calls) == 3


@pytest.mark.usefixtures("leases")
def test_a_signal_while_the_drain_finishes_shortens_it(ending, consumer, monkeypatch):
    monkeypatch.setattr(ending._drain, "finish", lambda: tell("Warm", "SIGTERM"), raising=False)
    ending.shutdown(consumer)
    assert consumer.calls == [("begin", None, False), "cancel", "end_broadcasts"]


def worker_Cold(_number, _frame):  # noqa: N802 - Celery's name
    raise AssertionError


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize("interruptible", [True, False])
def test_a_signal_for_the_run_on_the_main_thread_interrupts_it_and_nothing_else(
    ending, consumer, monkeypatch, interruptible
):
    signal.signal(signal.SIGQUIT, worker_Cold)
    ending.start(consumer)
    ending._drain.interrupts_main_thread = True
    monkeypatch.setattr(module, "may_interrupt", lambda _frame: interruptible)
    if interruptible:
        with pytest.raises(WorkerShutdown):
            signal.raise_signal(signal.SIGQUIT)
    else:
        signal.raise_signal(signal.SIGQUIT)
    assert consumer.calls == []
    assert state.should_stop is None


@pytest.fixture
def hangup():
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("by_module", "celerys"), [(True, True), (True, False), (False, True)])
def test_a_worker_that_was_started_by_python_m_restarts_so_at_sighup(monkeypatch, hangup, by_module, celerys):
    called = []

    def handler(*args):
        called.append(args)

    handler.__name__ = module.RESTART_HANDLER if celerys else "theirs"
    hangup(handler)
    main = SimpleNamespace(__spec__="spec" if by_module else None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    hooks = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    restart_by_module()
    restart_by_module()
    signal.raise_signal(signal.SIGHUP)
    assert len(called) == 1
    assert len(hooks) == (by_module and celerys)
    monkeypatch.setattr(sys, "argv", ["/path/celery/__main__.py", "worker"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "celery", "worker"])
    for hook in hooks:
        hook()
        assert sys.argv == ["-m", "celery", "worker"]


def test_stats_show_the_broker_as_celery_does_without_secrets_of_the_options(monkeypatch):
    told = {"hostname": "sqs", "transport_options": {"secret_access_key": "s3cret", "region": "eu-west-1"}}
    step = Connection.__new__(Connection)
    monkeypatch.setattr(Connection, "info", lambda *_: {"broker": told})
    shown = Deliveries.__new__(Deliveries).info(SimpleNamespace(steps=[object(), step]))
    assert shown["broker"]["hostname"] == "sqs"
    assert shown["broker"]["transport_options"]["region"] == "eu-west-1"
    assert "s3cret" not in str(shown)
    monkeypatch.setattr(Connection, "info", lambda *_: {"broker": "N/A"})
    assert Deliveries.__new__(Deliveries).info(SimpleNamespace(steps=[step])) is None
