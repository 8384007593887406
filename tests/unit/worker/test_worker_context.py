"""A worker's context calls in the loop while there is one, and knows whether its pool can end runs."""

from types import SimpleNamespace

import pytest
from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import state

from celery_sqs_visibility.worker import worker_context as module
from celery_sqs_visibility.worker.worker_context import WorkerContext


class EndingPool(BasePool):
    """A pool that can end runs."""

    def __init__(self):
        self.ended = []

    def terminate_job(self, pid, signal=None):
        self.ended.append((pid, signal))


@pytest.fixture
def loop(monkeypatch):
    """What is called soon, and how often the loop was woken for it."""
    loop = SimpleNamespace(soon=[], wakes=0)

    def wake():
        loop.wakes += 1

    monkeypatch.setattr(module, "lease_table", lambda: SimpleNamespace(wake=wake))
    return loop


@pytest.fixture
def worker(loop):
    worker = WorkerContext(has_processes=True)
    worker.hub = SimpleNamespace(call_soon=loop.soon.append)
    return worker


def test_what_belongs_to_the_loop_is_called_there_and_the_loop_is_woken(worker, loop):
    called = []
    worker.call_in_loop(lambda: called.append(1))
    assert (called, loop.wakes, len(loop.soon)) == ([], 1, 1)
    loop.soon[0]()
    assert called == [1]


@pytest.mark.parametrize("missing", ["hub", "table", "should_stop", "should_terminate"])
def test_without_a_loop_or_in_a_shutdown_it_is_called_here(worker, loop, monkeypatch, missing):
    if missing == "hub":
        worker.hub = None
    elif missing == "table":
        monkeypatch.setattr(module, "lease_table", lambda: None)
    else:
        monkeypatch.setattr(state, missing, 0 if missing == "should_stop" else True)
    called = []
    worker.call_in_loop(lambda: called.append(1))
    assert (called, loop.soon, loop.wakes) == ([1], [], 0)


@pytest.mark.parametrize(("pool", "can"), [(EndingPool(), True), (SoloPool(1), False), (None, False)])
def test_it_knows_whether_its_pool_has_a_way_to_end_a_run(pool, can):
    assert WorkerContext(pool).can_end_runs == can
    assert not WorkerContext(object.__new__(ThreadPool)).can_end_runs


def test_a_run_is_ended_by_the_signal_of_that_name_if_there_is_a_pool():
    pool = EndingPool()
    WorkerContext(pool).kill(4711, "SIGKILL")
    WorkerContext(None).kill(4711, "SIGKILL")
    assert pool.ended == [(4711, 9)]
