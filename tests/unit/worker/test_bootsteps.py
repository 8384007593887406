"""Every way in which a worker may end leads to its drain; requests are bound to their worker."""

import atexit
import logging
import math
import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
from celery import signals
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import state
from celery.worker.consumer.connection import Connection

from celery_sqs_visibility.worker import bootsteps as module
from celery_sqs_visibility.worker.bootsteps import Deliveries, Endings, quiet_dependencies, restart_by_module
from celery_sqs_visibility.worker.drain import Drain
from celery_sqs_visibility.worker.worker_context import WorkerContext

HOSTNAME = "worker@host"
SOFT_TIMEOUT = 7
SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class StubDrain:
    """Notes what it is asked for: seconds, and whether cold; or another method."""

    interrupts_main_thread = False

    def __init__(self, consumer):
        self._asked = consumer.asked

    def start(self):
        """It has no thread."""

    def begin(self, timeout=None, *, cold=False):
        self._asked.append((timeout, cold))

    def __getattr__(self, name):
        return lambda: self._asked.append(name)


@pytest.fixture(autouse=True)
def _handlers(monkeypatch):
    monkeypatch.setattr(module, "Drain", StubDrain)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def leases(monkeypatch):
    """What tasks and the event loop are told."""
    told = []
    table = SimpleNamespace(stop=lambda: told.append("stop"), wake=lambda: told.append("wake"))
    monkeypatch.setattr(module, "lease_table", lambda: table)
    return told


@pytest.fixture
def consumer():
    return SimpleNamespace(
        asked=[],
        connection=SimpleNamespace(transport=SimpleNamespace(context=SimpleNamespace())),
        controller=SimpleNamespace(exitcode=None),
        hostname=HOSTNAME,
        app=SimpleNamespace(conf=SimpleNamespace(worker_soft_shutdown_timeout=SOFT_TIMEOUT)),
        connect=lambda: None,
    )


@pytest.fixture
def asked(consumer):
    """What the drain was asked for."""
    return consumer.asked


@pytest.fixture
def ending(consumer):
    ending = Endings(consumer)
    ending.create(consumer)
    ending.start(consumer)
    yield ending
    ending.shutdown(consumer)


def tell(how, sig="SIGTERM"):
    """As Celery's signal handlers do."""
    signals.worker_shutting_down.send(sender=HOSTNAME, sig=sig, how=how, exitcode=0)


def celerys_cold_handler(number):
    """Install one; the signals it is called with."""
    numbers = []

    def worker_Cold(number, _frame):  # noqa: N802 - Celery's name
        numbers.append(number)

    signal.signal(number, worker_Cold)
    return numbers


WARM, COLD, SECOND_COLD, CLOSED = (None, False), (SOFT_TIMEOUT, True), (0, True), (math.inf, False)
ENDED = ["finish", "cancel", "end_broadcasts"]


@pytest.mark.parametrize(
    ("told", "terminal", "calls"),
    [
        ([("Warm", "SIGTERM")], False, [WARM]),
        ([("Warm", "SIGINT")], False, [WARM]),
        ([("Warm", "SIGTERM")], True, [WARM]),
        ([("Warm", "SIGINT")], True, ["shorten_polls", WARM]),
        ([("Warm", "SIGTERM")] * 2, False, [WARM, "hurry", WARM]),
        ([("Warm", "SIGTERM"), ("Cold", "SIGQUIT")], False, [WARM, "shorten_polls", COLD]),
        ([("Cold", "SIGQUIT")] * 2, False, ["shorten_polls", COLD, "shorten_polls", SECOND_COLD]),
    ],
)
def test_a_signal_drains_and_a_second_one_or_a_cold_one_or_ctrl_c_at_a_terminal_does_not_wait_for_polls(
    monkeypatch, request, consumer, leases, told, terminal, calls
):
    monkeypatch.setattr(os, "isatty", lambda _descriptor: terminal)
    request.getfixturevalue("ending")
    for how, sig in told:
        tell(how, sig)
    assert consumer.asked == calls
    assert leases == ["stop"] * len(told) + ["wake"] * calls.count("hurry"), "the event loop is woken"
    assert consumer.controller.exitcode == (1 if COLD in calls else None), "a warm one leaves it to Celery"


def test_a_cold_shutdown_is_a_drain_in_place_of_celerys_handler(ending, consumer, asked):
    celerys = celerys_cold_handler(signal.SIGQUIT)
    sent = []

    def note(sender, sig, how, exitcode, **_):
        sent.append((sender, sig, how, exitcode))

    signals.worker_shutting_down.connect(note)
    ending.start(consumer)
    ending.start(consumer)  # whenever it has connected anew
    signal.raise_signal(signal.SIGQUIT)
    signals.worker_shutting_down.disconnect(note)
    assert asked == ["shorten_polls", COLD]
    assert state.should_stop == 1
    assert sent == [(HOSTNAME, "SIGQUIT", "Cold", 1)]
    assert celerys == []


def test_the_first_sigint_ends_with_the_status_of_sigterm(ending, consumer):
    numbers = []

    def worker_Warm(number, _frame):  # noqa: N802 - Celery's name
        numbers.append(number)
        state.should_stop = 1

    signal.signal(signal.SIGINT, worker_Warm)
    ending.start(consumer)
    signal.raise_signal(signal.SIGINT)
    assert state.should_stop == 0
    assert numbers == [signal.SIGINT]


def test_a_worker_on_another_thread_does_not_wait_for_its_polls(ending, consumer, asked):
    thread = threading.Thread(target=ending.start, args=[consumer])
    ending.shutdown(consumer)  # it was started here
    thread.start()
    thread.join()
    consumer.close()
    assert asked == [*ENDED, CLOSED, "hurry"]


def test_a_handler_that_is_not_celerys_is_left_alone(ending, consumer):
    def theirs(_number, _frame):
        pass

    signal.signal(signal.SIGTERM, theirs)
    ending.start(consumer)
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_a_forked_child_leaves_a_cold_shutdown_to_celery(ending, consumer, asked):
    celerys = celerys_cold_handler(signal.SIGQUIT)
    ending.start(consumer)
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGQUIT)
        os._exit(len(celerys))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert asked == []


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGINT])
@pytest.mark.parametrize("ended", [False, True])
def test_before_it_has_connected_and_after_its_end_a_cold_shutdown_is_a_flag(consumer, asked, number, ended):
    ending = Endings(consumer)
    ending.create(consumer)
    celerys = celerys_cold_handler(number)
    consumer.connect()
    if ended:
        ending.start(consumer)
        ending.shutdown(consumer)
    signal.raise_signal(number)
    assert state.should_terminate == 1
    assert (celerys, asked) == ([], ENDED if ended else [])


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(("terminated", "calls", "told"), [(None, [CLOSED], ["stop"]), (1, [], [])])
def test_a_stop_without_a_signal_lets_runs_end_and_tells_them(
    consumer, asked, leases, terminated, calls, told
):
    state.should_terminate = terminated
    consumer.close()
    assert (asked, leases) == (calls, told)


def test_nothing_is_asked_before_the_start_or_after_the_end(consumer, asked):
    ending = Endings(consumer)
    ending.create(consumer)
    consumer.close()
    assert asked == []
    ending.start(consumer)
    ending.start(consumer)  # whenever it has connected anew
    tell("Warm")
    for _ in range(2):
        ending.shutdown(consumer)
        tell("Warm")
        consumer.close()
    assert asked == [WARM, *ENDED], "the drain is finished before its queues go"


def test_there_is_one_drain_whose_thread_ends_with_it(ending, consumer, monkeypatch):
    monkeypatch.setattr(module, "Drain", Drain)
    before = set(threading.enumerate())
    ending.shutdown(consumer)
    vars(consumer.connection.transport.context).update(
        options=SimpleNamespace(shutdown_timeout=20),
        receiving=SimpleNamespace(queue_consumers=[], worker_queue_consumers=[]),
        end_broadcasts=lambda: None,
        end_control_first=lambda: None,
    )
    for _ in range(2):
        ending.start(consumer)
    (thread,) = set(threading.enumerate()) - before
    ending.shutdown(consumer)
    thread.join(10)
    assert not thread.is_alive()


def test_of_two_workers_in_turn_each_hears_its_signals(consumer, asked):
    endings = []  # kept, as garbage may be for a while
    for _ in range(2):
        celerys = celerys_cold_handler(signal.SIGINT)
        endings.append(ending := Endings(consumer))
        ending.create(consumer)
        ending.start(consumer)
        celerys_cold_handler(signal.SIGINT)
        tell("Warm", "SIGINT")
        signal.raise_signal(signal.SIGINT)
        ending.shutdown(consumer)
        assert celerys == []
    assert asked == [WARM, "shorten_polls", COLD, *ENDED] * 2


@pytest.mark.usefixtures("ending")
def test_the_command_shutdown_ends_a_worker_as_sigterm_does(consumer, asked, leases):
    consumer.connection.transport.context.on_remote_shutdown()
    assert state.should_stop == 0
    assert (asked, leases) == ([WARM], ["stop"])


@pytest.mark.usefixtures("ending")
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


def test_a_signal_while_the_drain_finishes_shortens_it(ending, consumer, asked, monkeypatch):
    monkeypatch.setattr(StubDrain, "finish", lambda _: tell("Warm"), raising=False)
    ending.shutdown(consumer)
    assert asked == [WARM, "cancel", "end_broadcasts"]


def worker_Cold(_number, _frame):  # noqa: N802 - Celery's name
    raise AssertionError


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_signal_for_the_run_on_the_main_thread_interrupts_it_and_nothing_else(
    ending, consumer, asked, monkeypatch, interruptible
):
    signal.signal(signal.SIGQUIT, worker_Cold)
    ending.start(consumer)
    monkeypatch.setattr(StubDrain, "interrupts_main_thread", True)
    monkeypatch.setattr(module, "may_interrupt", lambda _frame: interruptible)
    if interruptible:
        with pytest.raises(WorkerShutdown):
            signal.raise_signal(signal.SIGQUIT)
    else:
        signal.raise_signal(signal.SIGQUIT)
    assert asked == []
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


def test_when_the_worker_begins_to_end_it_leaves_the_brakes_to_others():
    step, closed = Deliveries.__new__(Deliveries), []
    step._worker = WorkerContext()
    step.close(None)
    step._worker.brakes = SimpleNamespace(close=lambda: closed.append(1))
    step.close(None)
    assert closed == [1]


LOGGERS = ("boto3", "botocore", "s3transfer", "urllib3")


@pytest.fixture(autouse=True)
def _levels():
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def levels():
    return {logging.getLogger(name).level for name in LOGGERS}


def test_they_write_warnings_whatever_the_root_loggers_level():
    quiet_dependencies()
    assert levels() == {logging.WARNING}


def test_a_level_that_somebody_has_set_stays():
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    quiet_dependencies()
    assert logging.getLogger("botocore").level == logging.DEBUG
    assert logging.getLogger("urllib3").level == logging.WARNING


def test_logging_that_the_user_sets_up_is_left_alone():
    def set_up_logging(**_):
        """A user's."""

    signals.setup_logging.connect(set_up_logging)
    try:
        quiet_dependencies()
    finally:
        signals.setup_logging.disconnect(set_up_logging)
    assert levels() == {logging.NOTSET}
