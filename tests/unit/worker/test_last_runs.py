"""Runs that go on when a worker's time is up are ended once each, the main thread's by interrupts."""

from __future__ import annotations

import math
import signal
from types import SimpleNamespace

import pytest
from celery.worker import state
from support.clock import FakeClock

from celery_sqs_visibility.worker import drain as module
from celery_sqs_visibility.worker.drain import (
    ECS_STOP_SECONDS,
    ECS_VARIABLE,
    GRACE_VARIABLE,
    MARGIN_SECONDS,
    UNWIND_SECONDS,
    LastRuns,
    grace_period,
    may_interrupt,
    shutdown_times,
)


class Run:
    """A request of ours whose message is held until its end, or was deleted when it began."""

    name = "task"

    def __init__(self, run_id, *, early=False, **attributes):
        self.id = run_id
        self.ends = 0
        self.delivery = SimpleNamespace(acknowledged_early=early)
        vars(self).update(attributes)

    def end_in_shutdown(self):
        self.ends += 1


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def interrupts(monkeypatch, clock):
    """The instants at which the main thread was interrupted."""
    instants = []
    monkeypatch.setattr(module, "_interrupt_main_thread", lambda: instants.append(clock.monotonic()))
    return instants


def last(*runs):
    return LastRuns(lambda: list(runs), lambda end: end())


def test_runs_are_told_apart_by_when_their_messages_are_deleted():
    late, early, of_another_broker = Run(1), Run(2, early=True), Run(3)
    of_another_broker.delivery = None
    runs = last(late, early, of_another_broker)
    assert runs.acknowledged_late() == [late]
    assert runs.acknowledged_early() == [early, of_another_broker]


def test_each_late_run_is_ended_once_and_one_that_began_since_as_well():
    runs = [Run(1), Run(2, early=True)]
    of_the_worker = LastRuns(lambda: list(runs), lambda end: end())
    assert not of_the_worker.any_ended
    of_the_worker.end_acknowledged_late()
    runs.append(Run(3))
    of_the_worker.end_acknowledged_late()
    assert [each.ends for each in runs] == [1, 0, 1]
    assert of_the_worker.any_ended


def test_without_late_runs_none_was_ended():
    runs = last(Run(1, early=True))
    runs.end_acknowledged_late()
    assert not runs.any_ended
    assert not runs.interrupts


def test_runs_that_were_acknowledged_early_are_told_as_lost_and_ended_once(caplog):
    run = Run("id", early=True)
    runs = last(run)
    for _ in range(2):
        runs.end_acknowledged_early()
    assert (run.ends, runs.acknowledged_early(), runs.any_ended) == (1, [], True)
    assert caplog.text.count("shutdown: lost: it was acknowledged when it began") == 1
    assert "task=task task_id=id" in caplog.text
    assert [record.sqs for record in caplog.records] == [{"task": "task", "task_id": "id"}]


def test_a_run_at_the_end_of_a_chord_is_ended_a_moment_later():
    run = Run(1, publishes_chord=True)
    runs = last(run)
    runs.end_acknowledged_late()
    assert (run.ends, runs.any_ended) == (0, True)
    run.publishes_chord = False
    runs.end_acknowledged_late()
    assert run.ends == 1


def test_a_request_of_another_class_is_counted_and_cannot_be_ended():
    run = SimpleNamespace(delivery=Run(1).delivery)
    runs = last(run)
    runs.end_acknowledged_late()
    assert runs.any_ended


def test_a_run_on_the_main_thread_is_interrupted_at_once_and_again_when_it_had_time_to_clean_up(
    clock, interrupts
):
    run = Run(1, is_on_main_thread=True)
    runs = last(run)
    began = clock.monotonic()
    for _ in range(5):
        runs.end_acknowledged_late()
        clock.advance(UNWIND_SECONDS / 2)
    assert interrupts == [began, began + UNWIND_SECONDS, began + 2 * UNWIND_SECONDS]
    assert (run.ends, runs.interrupts) == (0, True)


def test_the_main_thread_is_not_interrupted_for_a_run_elsewhere(clock, interrupts):
    run = Run(1, is_on_main_thread=False)
    last(run).end_acknowledged_late()
    assert (run.ends, interrupts) == (1, [])


@pytest.mark.parametrize(("handler", "sent"), [(lambda *_: None, 1), (signal.SIG_DFL, 0)])
def test_the_main_thread_is_sent_a_signal_if_that_does_not_kill_the_process(monkeypatch, handler, sent):
    signals = []
    monkeypatch.setattr(module.signal, "getsignal", {signal.SIGQUIT: handler}.get)
    monkeypatch.setattr(module.signal, "pthread_kill", lambda *call: signals.append(call))
    module._interrupt_main_thread()
    main = module.threading.main_thread().ident
    assert signals == [(main, signal.SIGQUIT)] * sent


def test_all_runs_of_the_process_are_looked_at():
    run = Run(1)
    state.active_requests.add(run)
    assert LastRuns().acknowledged_late() == [run]


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_run_is_ended_in_a_thread_of_its_own_or_here_if_there_is_none(monkeypatch, has_threads):
    started = []

    def start(act, name):
        started.append(name)
        return act if has_threads else None

    monkeypatch.setattr(module, "start_thread", start)
    run = Run(1)
    LastRuns(lambda: [run]).end_acknowledged_late()
    assert started == ["sqs-end-run"]
    assert run.ends == (0 if has_threads else 1)


def frame_within(code):
    """A frame that was called by one with that code."""
    return SimpleNamespace(f_code=None, f_back=SimpleNamespace(f_code=code, f_back=None))


def test_only_a_run_may_be_interrupted_and_not_at_its_end_as_a_chords_member(monkeypatch):
    assert may_interrupt(frame_within(module.RUN_CODE))
    assert not may_interrupt(frame_within("another"))
    assert not may_interrupt(None)
    monkeypatch.setattr(module, "is_at_end", lambda thread: thread == module.threading.get_ident())
    assert not may_interrupt(frame_within(module.RUN_CODE))


@pytest.mark.parametrize(
    ("variables", "seconds", "source"),
    [
        ({}, math.inf, ""),
        ({GRACE_VARIABLE: "45"}, 45.0, f"{GRACE_VARIABLE} says that SIGKILL comes 45 s after SIGTERM"),
        ({ECS_VARIABLE: "http://x"}, ECS_STOP_SECONDS, "Amazon ECS kills 30 s after SIGTERM"),
        ({GRACE_VARIABLE: "120", ECS_VARIABLE: "http://x"}, 120.0, GRACE_VARIABLE),
        ({GRACE_VARIABLE: "", ECS_VARIABLE: "http://x"}, ECS_STOP_SECONDS, "Amazon ECS"),
        ({GRACE_VARIABLE: "a minute"}, math.inf, ""),
    ],
)
def test_the_platform_says_when_sigkill_comes(monkeypatch, caplog, variables, seconds, source):
    for name in (GRACE_VARIABLE, ECS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, reason = grace_period()
    assert found == seconds
    assert reason.startswith(source)
    assert ("to be a number of seconds, got 'a minute'" in caplog.text) == ("a minute" in variables.values())


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, 25), ({GRACE_VARIABLE: "120"}, 115), ({GRACE_VARIABLE: "3"}, 0), ({ECS_VARIABLE: "http://x"}, 25)],
)
def test_runs_have_all_but_five_seconds_of_the_grace_period_unless_the_option_says_otherwise(
    monkeypatch, caplog, variables, seconds
):
    for name in (GRACE_VARIABLE, ECS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    timeout, _ = shutdown_times(None)
    assert timeout == seconds
    assert not caplog.messages
    assert shutdown_times(0.5)[0] == 0.5


@pytest.mark.parametrize(
    ("timeout", "warns"), [(30 - MARGIN_SECONDS, False), (30 - MARGIN_SECONDS + 1, True)]
)
def test_a_shutdown_timeout_that_sigkill_cuts_off_is_warned_of(monkeypatch, caplog, timeout, warns):
    monkeypatch.setenv(GRACE_VARIABLE, "30")
    assert shutdown_times(timeout) == (timeout, 30)
    assert ("set at most 28" in caplog.text) == warns


def test_a_grace_that_leaves_no_time_lets_none_to_runs(monkeypatch, caplog):
    monkeypatch.setenv(GRACE_VARIABLE, "1")
    shutdown_times(1)
    assert "set at most 0" in caplog.text
