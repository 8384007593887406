"""A pool of threads, and the interpreter, end without waiting for runs that were left."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support.processes import SOON

from celery_sqs_visibility.worker import pool_patches as module
from celery_sqs_visibility.worker.pool_patches import leave_runs
from celery_sqs_visibility.worker.worker_context import WorkerContext


@pytest.fixture
def hooks(monkeypatch):
    """What is called before the interpreter joins threads."""
    hooks = []
    monkeypatch.setattr(module, "call_before_threads_are_joined", hooks.append)
    return hooks


@pytest.fixture
def exits(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "call_exit_hooks", lambda: calls.append("exit hooks"))
    monkeypatch.setattr(module.os, "_exit", calls.append)
    return calls


@pytest.fixture
def run():
    """A run in a pool of threads that goes on until the test is over."""
    over, began = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:

        def go_on():
            began.set()
            over.wait(SOON)

        executor.submit(go_on)
        assert began.wait(SOON)
        (thread,) = executor._threads
        yield SimpleNamespace(pool=SimpleNamespace(executor=executor), thread=thread, over=over)
        over.set()


def stopping(pool):
    thread = threading.Thread(target=pool.on_stop, daemon=True)
    thread.start()
    return thread


def test_a_pool_waits_for_a_run_and_no_longer_once_that_is_left(run, hooks, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.01)
    worker = WorkerContext()
    leave_runs(run.pool, worker, None)
    stop = stopping(run.pool)
    stop.join(0.1)
    assert stop.is_alive()
    worker.left.add(run.thread.ident)
    stop.join(SOON)
    assert not stop.is_alive()
    assert run.thread.is_alive()
    assert len(hooks) == 1


def test_a_pool_whose_runs_end_has_ended(run, hooks):
    leave_runs(run.pool, WorkerContext(), None)
    stop = stopping(run.pool)
    run.over.set()
    stop.join(SOON)
    assert not stop.is_alive()
    assert not run.thread.is_alive()


def test_what_waits_in_a_pool_that_stops_is_not_run(run, hooks):
    waiting = run.pool.executor.submit(pytest.fail, "it was run")
    leave_runs(run.pool, WorkerContext(), None)
    run.over.set()
    run.pool.on_stop()
    assert waiting.cancelled()


def test_a_pool_without_threads_is_left_alone(hooks):
    pool = SimpleNamespace(executor=None)
    leave_runs(pool, WorkerContext(), None)
    assert not hasattr(pool, "on_stop")
    assert hooks == []


def test_a_worker_on_another_thread_does_not_end_the_interpreter(run, hooks):
    thread = threading.Thread(target=leave_runs, args=[run.pool, WorkerContext(), None])
    thread.start()
    thread.join()
    assert hooks == []
    run.over.set()


@pytest.mark.parametrize(("exitcode", "status"), [(None, 0), (1, 1)])
def test_the_interpreter_ends_at_once_where_a_run_is_left(run, hooks, exits, exitcode, status):
    worker = WorkerContext()
    leave_runs(run.pool, worker, SimpleNamespace(exitcode=exitcode))
    hooks[0]()
    assert exits == []
    worker.left.add(run.thread.ident)
    hooks[0]()
    assert exits == ["exit hooks", status]
