"""A worker's facts: those of its pool, of Celery's loop and of the threads that it has."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from celery.bootsteps import CLOSE, RUN
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from celery_sqs_visibility.operate.health.worker_health import WorkerHealth
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.health import DutyFacts, PollingFacts, WorkerPhase
from celery_sqs_visibility.worker.worker_context import WorkerContext


class QueueConsumer:
    """Tells what it is told to."""

    def polling_facts(self, _now):
        return (PollingFacts("orders"),)

    def duty_facts(self, _now):
        return (DutyFacts("extends messages"),)

    forgotten = 0.0


@pytest.fixture
def consumer():
    receiving = SimpleNamespace(
        worker_queue_consumers=[QueueConsumer()], loop_late=WorkerContext().loop_late, brakes=list
    )
    context = SimpleNamespace(receiving=receiving)
    buffer = SimpleNamespace(looped_at=SYSTEM_CLOCK.monotonic() - 60)
    transport = SimpleNamespace(context=context, buffer=buffer)
    return SimpleNamespace(
        hostname="w@h",
        connection=SimpleNamespace(transport=transport),
        blueprint=SimpleNamespace(state=RUN),
        pool=SimpleNamespace(),
    )


@pytest.fixture
def child():
    """A process that lives until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child


def test_a_loop_that_hangs_is_answered_as_unavailable(consumer):
    response = WorkerHealth(consumer).live()
    answer = json.loads(response.body)
    assert (response.status, answer["node"], answer["pid"]) == (503, "w@h", os.getpid())
    assert answer["reason"].startswith("stuck: Celery's event loop has been blocked")
    assert answer["polls"][0]["queue"] == "orders"


def test_a_task_of_a_solo_pool_may_have_the_main_thread_for_as_long_as_it_takes(consumer, monkeypatch):
    consumer.connection.transport.context.receiving.loop_late = WorkerContext(SoloPool(1)).loop_late
    monkeypatch.setattr(state, "active_requests", {"a run"})
    assert WorkerHealth(consumer).live().status == 200


def test_a_worker_without_a_connection_or_a_queue_starts(consumer):
    consumer.connection.transport.context.receiving.worker_queue_consumers = []
    assert WorkerHealth(consumer).facts().phase is WorkerPhase.STARTING
    consumer.connection = None
    assert WorkerHealth(consumer).facts().phase is WorkerPhase.STARTING


@pytest.mark.parametrize("told", ["a signal", "a closing consumer"])
def test_a_worker_that_was_told_to_stops(consumer, monkeypatch, told):
    if told == "a signal":
        monkeypatch.setattr(state, "should_stop", 0)
    else:
        consumer.blueprint.state = CLOSE
    assert WorkerHealth(consumer).facts().phase is WorkerPhase.STOPPING


def test_processes_that_have_ended_do_not_count_and_are_left_to_the_pool(consumer, child):
    consumer.pool = SimpleNamespace(_pool=SimpleNamespace(_pool=[SimpleNamespace(pid=child.pid)]))
    assert WorkerHealth(consumer).facts().processes == 1
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert WorkerHealth(consumer).facts().processes == 0
    assert child.wait() == 1
    assert WorkerHealth(consumer).facts().processes == 0
