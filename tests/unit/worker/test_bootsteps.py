"""Every way in which a worker may end leads to its drain; requests are bound to their worker."""

from __future__ import annotations

import math
import os
import signal
import threading
from types import SimpleNamespace

import pytest
from celery import Task, signals
from celery.worker import state
from celery.worker.request import Request

from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.worker.bootsteps import Endings
from celery_sqs_visibility.worker.bound_tasks import bind_request_class
from celery_sqs_visibility.worker.drain import Drain
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest
from celery_sqs_visibility.worker.worker_context import WorkerContext

HOSTNAME = "worker@host"
SOFT_TIMEOUT = 7
SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """What drains were asked for: seconds, and whether cold; or another method."""
    calls = []
    monkeypatch.setattr(Drain, "begin", lambda _, timeout=None, cold=False: calls.append((timeout, cold)))
    monkeypatch.setattr(Drain, "shorten_polls", lambda _: calls.append("shorten_polls"))
    monkeypatch.setattr(Drain, "hurry", lambda _: calls.append("hurry"))
    return calls


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def consumer():
    broker = SimpleNamespace(
        options=SimpleNamespace(shutdown_timeout=20),
        receiving=SimpleNamespace(queue_consumers=[], worker_queue_consumers=[]),
        end_broadcasts=lambda: None,
        end_control_first=lambda: None,
    )
    conf = SimpleNamespace(worker_soft_shutdown_timeout=SOFT_TIMEOUT)
    return SimpleNamespace(
        connection=SimpleNamespace(transport=SimpleNamespace(context=broker)),
        controller=SimpleNamespace(exitcode=None),
        hostname=HOSTNAME,
        app=SimpleNamespace(conf=conf),
        connect=lambda: None,
    )


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


def drains():
    """The drains that wait to be asked."""
    return [thread for thread in threading.enumerate() if thread.name == "sqs-drain"]


WARM, COLD, SECOND_COLD = (None, False), (SOFT_TIMEOUT, True), (0, True)


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
    monkeypatch, request, asked, told, terminal, calls
):
    monkeypatch.setattr(os, "isatty", lambda _descriptor: terminal)
    request.getfixturevalue("ending")
    for how, sig in told:
        tell(how, sig)
    assert asked == calls


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


@pytest.mark.usefixtures("ending")
def test_so_is_one_whose_handler_celery_installs_at_the_first_ctrl_c(asked):
    celerys = celerys_cold_handler(signal.SIGINT)
    tell("Warm", "SIGINT")
    signal.raise_signal(signal.SIGINT)
    assert asked == [WARM, "shorten_polls", COLD]
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
    assert asked == [(math.inf, False), "hurry"]


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
    assert celerys == asked == []


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(("terminated", "calls"), [(None, [(math.inf, False)]), (1, [])])
def test_a_stop_without_a_signal_lets_runs_end(consumer, asked, terminated, calls):
    state.should_terminate = terminated
    consumer.close()
    assert asked == calls


def test_nothing_is_asked_before_the_start_or_after_the_end_and_there_is_one_drain(consumer, asked):
    before = drains()
    ending = Endings(consumer)
    ending.create(consumer)
    consumer.close()
    assert asked == []
    ending.start(consumer)
    ending.start(consumer)  # whenever it has connected anew
    [thread] = [thread for thread in drains() if thread not in before]
    tell("Warm")
    ending.shutdown(consumer)
    tell("Warm")
    consumer.close()
    assert asked == [WARM]
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
    assert asked == [WARM, "shorten_polls", COLD] * 2


class UsersRequest(Request):
    """Knows nothing of SQS."""


class UsersVisibilityRequest(VisibilityRequest):
    """Of a task that does."""


@pytest.mark.parametrize(
    ("base", "theirs", "bases"),
    [
        (Task, Task.Request, [DeliveryRequest]),
        (VisibilityTask, VisibilityTask.Request, [VisibilityRequest]),
        (Task, UsersRequest, [UsersRequest, DeliveryRequest]),
        (VisibilityTask, UsersRequest, [UsersRequest, VisibilityRequest]),
        (VisibilityTask, UsersVisibilityRequest, [UsersVisibilityRequest]),
    ],
)
def test_a_tasks_request_class_is_ours_or_mixed_with_it_and_bound_to_the_latest_worker(base, theirs, bases):
    task = base()
    task.Request = theirs
    for worker in (WorkerContext(), WorkerContext()):
        bind_request_class(task, worker)
        assert task.Request.worker is worker
        assert [each for each in task.Request.__mro__ if each in bases] == bases
    assert len(task.Request.__mro__) <= len(bases) + len(VisibilityRequest.__mro__) + 1
