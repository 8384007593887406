"""A request ends its own run and no other, and comes back when it was killed for nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import Terminated, WorkerLostError
from celery.worker import state
from celery.worker.request import Request
from kombu.message import Message
from kombu.utils.json import dumps

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.model import Delete, Delivery, Lapse, Release
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.worker import request as requests
from celery_sqs_visibility.worker.request import DeliveryRequest

SQS = FakeSQS()
QUEUE = Queue("q", SQS.create_queue("q", {}, {}), SQS)


class Pool:
    """Has a way to end a run; notes what was settled by then, and whether the request knew."""

    def __init__(self, world):
        self.world = world
        self.killed = []

    def terminate_job(self, pid, signal):
        self.killed.append((pid, list(self.world.settled), self.world.request._already_cancelled))


class World:
    """A request that runs, and what holds its delivery."""

    def __init__(self):
        self.settled = []
        self.pool = Pool(self)
        self.delivery = Delivery(QUEUE, "handle", Facts("q", "id", 1, 0), 1000, 1120, self)
        self.request = None

    def settle(self, delivery, settlement):
        self.settled.append(settlement)
        return len(self.settled) == 1

    def run(self):
        """The pool begins to run it."""
        self.request.time_start, self.request.worker_pid = 1.0, 4711
        state.active_requests.add(self.request)
        return self


def noop():
    """A task."""


@pytest.fixture
def world(monkeypatch):
    world = World()
    with Celery("test", set_as_current=False, broker="memory://") as app:
        task = app.task(noop, name="task", shared=False, acks_late=True)
        message = app.amqp.as_task_v2("id-1", "task")
        received = Message(
            dumps(message.body),
            headers=message.headers,
            properties={**message.properties, "delivery_tag": "tag"},
            content_type="application/json",
            content_encoding="utf-8",
        )
        world.request = DeliveryRequest(received, app=app, task=task)
    world.request.delivery = world.delivery
    world.request.pool = world.pool
    monkeypatch.setattr(DeliveryRequest, "hub", None)
    monkeypatch.setattr(DeliveryRequest, "pool_has_processes", True)
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    yield world
    state.active_requests.discard(world.request)


def failure(exc):
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()


def of_celery_5_5(self, pool, signal=None):
    """A result backend that does not answer raises from Celery's own, after the kill and before its flag."""
    pool.terminate_job(self.worker_pid, signal)
    raise ConnectionError("the result backend is down")


def of_newer_ones(self, pool, signal=None, emit_retry=True):
    of_celery_5_5(self, pool, signal)


@pytest.mark.parametrize("cancel", [of_celery_5_5, of_newer_ones])
@pytest.mark.parametrize("processes", [True, False])
def test_a_run_knows_that_it_is_cancelled_before_it_is_killed(world, monkeypatch, cancel, processes):
    monkeypatch.setattr(Request, "cancel", cancel)
    monkeypatch.setattr(DeliveryRequest, "pool_has_processes", processes)
    monkeypatch.setattr(world.request, "come_back_later", lambda: world.request.settle(Lapse()))
    world.run()
    with pytest.raises(ConnectionError):
        world.request.cancel(world.pool, "TERM")
    assert world.pool.killed == [(4711, [] if processes else [Lapse()], True)]


@pytest.mark.parametrize(
    ("options", "passed_on"), [({}, ("TERM",)), ({"emit_retry": False}, ("TERM", False))]
)
def test_celerys_own_cancelling_gets_what_it_was_called_with(world, monkeypatch, options, passed_on):
    asked = []
    monkeypatch.setattr(
        Request, "cancel", lambda self, pool, signal, **more: asked.append((signal, *more.values()))
    )
    world.request.cancel(world.pool, "TERM", **options)
    assert asked == [passed_on]


def test_what_was_acknowledged_before_is_cancelled_all_the_same(world, monkeypatch):
    world.run().request.acknowledged = True
    world.request.cancel(world.pool)
    assert len(world.pool.killed) == 1
    assert world.settled == []


@pytest.mark.parametrize("exc", [Terminated(15), WorkerLostError("gone"), SystemExit(1)])
def test_what_comes_of_a_process_that_was_killed_is_not_its_runs_end(world, monkeypatch, exc):
    monkeypatch.setattr(Request, "on_failure", lambda *_: pytest.fail("Celery would delete it"))
    world.run().request.cancel(world.pool)
    world.request.on_failure(failure(exc))
    assert world.settled == [Release()]
    assert world.request not in state.active_requests


def test_what_had_ended_before_it_was_cancelled_has_ended(world, monkeypatch):
    world.run().request.cancel(world.pool)
    world.request.on_failure(failure(ValueError("its own")), return_ok=True)
    assert world.settled == [Delete()]


def test_a_run_whose_message_is_lost_is_settled_first_and_then_ended(world):
    world.run().request.end_lost_run(world.delivery)
    assert world.pool.killed == [(4711, [Lapse()], True)]
    world.request.on_failure(failure(Terminated(15)))
    assert world.settled == [Lapse()]


def test_a_run_that_ended_first_is_not_ended(world):
    world.run().settle(world.delivery, Delete())
    world.request.end_lost_run(world.delivery)
    assert world.pool.killed == []


def test_a_run_whose_message_came_back_here_is_not_ended(world):
    superseded_by = Delivery(QUEUE, "newer", world.delivery.facts, 1120, 1240, world)
    world.delivery.superseded_by = superseded_by
    world.run()
    world.settle = lambda delivery, settlement: delivery is superseded_by  # as its ledger does
    world.request.end_lost_run(world.delivery)
    assert world.pool.killed == []
    assert not world.request.acknowledged


def test_what_does_not_run_is_not_ended(world):
    world.request.end_lost_run(world.delivery)
    assert world.pool.killed == []
    assert world.settled == []


def test_in_processes_it_is_ended_where_results_are_read_unless_its_result_was_read(world, monkeypatch):
    seats = LeaseTable()
    monkeypatch.setattr(requests, "lease_table", lambda: seats)
    called = []
    monkeypatch.setattr(DeliveryRequest, "hub", SimpleNamespace(call_soon=called.append))
    world.run().request.end_lost_run(world.delivery)
    assert world.settled == [Lapse()]
    assert world.pool.killed == []
    state.task_ready(world.request)  # its result is read, and its process has another's run by now
    called[0]()
    assert world.pool.killed == []


def test_in_a_shutdown_which_the_loop_has_left_it_is_ended_at_once(world, monkeypatch):
    monkeypatch.setattr(DeliveryRequest, "hub", SimpleNamespace(call_soon=pytest.fail))
    monkeypatch.setattr(state, "should_stop", 0)
    world.run().request.end_lost_run(world.delivery)
    assert len(world.pool.killed) == 1


def test_a_run_that_was_killed_and_not_meant_comes_back(world, monkeypatch, caplog):
    monkeypatch.setattr(Request, "on_failure", lambda *_: pytest.fail("Celery would delete it"))
    world.run().request.on_failure(failure(Terminated(15)))
    assert world.settled == [Release()]
    assert "comes back: its process was killed" in caplog.text


def test_a_run_that_was_revoked_stays_revoked(world, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda self, exc_info, *_: told.append(exc_info))
    monkeypatch.setattr(Request, "terminate", lambda *_: None)
    world.run().request.terminate(world.pool)
    world.request.on_failure(failure(Terminated(15)))
    assert len(told) == 1
    assert world.settled == []


def test_what_cannot_be_called_revoked_comes_back_and_raises_nothing(world, monkeypatch):
    def fail(self):
        raise ConnectionError("the result backend is down")

    came_back = []
    monkeypatch.setattr(world.request, "come_back_later", lambda: came_back.append(True))
    monkeypatch.setattr(Request, "revoked", fail)
    assert world.request.revoked()
    assert came_back
