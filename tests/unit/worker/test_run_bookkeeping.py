"""Bookkeeping of a run: its lease, its thread, its outcome and attempt, and its way out of Celery's state."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Ignore, NotRegistered, Reject, Retry
from celery.worker import state
from celery.worker.request import Request
from support.factories import AFTER_AN_ERROR, PID, FakeHolder, exc_info, held_delivery, noop, request

from celery_sqs_visibility.core.settlements import Hide, Lapse
from celery_sqs_visibility.worker import request as module
from celery_sqs_visibility.worker.request import GivenBackError, after_rejection


class NotingEvents:
    """A dispatcher that takes all events, and notes their kinds."""

    enabled, groups = True, ()

    def __init__(self):
        self.kinds = []

    def send(self, kind, **_):
        self.kinds.append(kind)


@pytest.fixture
def make(make):
    def make_with_lease(**options):
        made = make(**options)
        made.delivery.lease = SimpleNamespace(key=("slot", 7))
        return made

    return make_with_lease


def test_a_run_in_a_process_has_its_lease_before_it_is_sent_there(make):
    one = make()
    assert "visibility_lease" not in one.request_dict
    one.dispatch()
    assert one.request_dict["visibility_lease"] == ("slot", 7)


def test_a_run_in_a_thread_has_its_lease_when_it_begins_and_knows_its_thread(make):
    one = make(processes=False)
    one.on_accepted(PID, 0.0)
    assert one.request_dict["visibility_lease"] == ("slot", 7)
    assert one._thread == threading.get_ident()


def test_a_run_in_a_process_is_on_no_thread_of_this_one(make):
    one = make()
    one.on_accepted(PID, 0.0)
    assert one._thread is None
    assert not one.is_on_main_thread


def test_only_a_run_of_a_solo_pool_is_on_the_main_thread(make):
    one = make(processes=False)
    one.on_accepted(PID, 0.0)
    assert not one.is_on_main_thread, "a green pool ends its runs itself"
    one.worker.pool = SoloPool(1)
    assert one.is_on_main_thread
    one._thread = -1
    assert not one.is_on_main_thread


@pytest.mark.parametrize("processes", [True, False])
def test_a_run_that_was_given_back_leaves_celerys_books_and_takes_no_lease(make, holder, processes):
    one = make(running=True, processes=processes)
    state.reserved_requests.add(one)
    holder.may_run = False
    if processes:
        one.delivery.dispatch = lambda: False
        assert not one.dispatch()
        assert "visibility_lease" not in one.request_dict
    else:
        with pytest.raises(GivenBackError):
            one.on_accepted(PID, 0.0)
    assert one not in state.active_requests
    assert one not in state.reserved_requests


@pytest.mark.parametrize(
    ("end", "arguments", "outcome"),
    [
        ("on_failure", [exc_info(ValueError())], "failed"),
        ("on_failure", [exc_info(Reject("no"))], "failed"),
        ("on_failure", [exc_info(Ignore())], "succeeded"),
        ("on_retry", [exc_info(Retry())], "retried"),
    ],
)
def test_an_outcome_is_noted_for_metrics(make, monkeypatch, end, arguments, outcome):
    one = make(running=True)
    before = one.delivery.outcome
    monkeypatch.setattr(Request, end, lambda *_: None)
    getattr(one, end)(*arguments)
    noted = one.delivery.outcome
    assert noted == (before if outcome == "succeeded" else outcome)


def test_a_failure_is_celerys_to_settle_with_all_that_it_was_told(make, holder, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda _, *args: told.append(args) or "answer")
    failure = exc_info(ValueError())
    assert make(running=True).on_failure(failure, False, True) == "answer"
    assert told == [(failure, False, True)]
    assert holder.settled == []


def test_a_task_that_its_process_does_not_know_comes_back(make, holder, caplog):
    one = make(running=True)
    one.on_failure(exc_info(NotRegistered("task")))
    assert holder.settled == [AFTER_AN_ERROR]
    assert one not in state.active_requests
    assert "its process was forked before the task was registered" in caplog.text


def test_a_task_that_nobody_knows_fails_as_celery_says(make, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda *args: told.append(args))
    make().on_failure(exc_info(NotRegistered("task")), return_ok=True)
    assert len(told) == 1


def test_a_run_that_ends_in_a_shutdown_is_killed_and_celery_knows(make):
    one = make(running=True)
    one.end_in_shutdown()
    assert one.worker.pool.killed == [PID]
    assert one.acknowledged
    assert one.already_cancelled


@pytest.mark.parametrize(("processes", "told"), [(True, True), (False, False)])
def test_in_a_shutdown_a_green_pool_tells_of_no_success_of_a_run_that_it_killed(make, processes, told):
    one = make(running=True, processes=processes)
    one.eventer = NotingEvents()
    one.end_in_shutdown()
    assert (one.eventer is not None) == told


def test_in_a_shutdown_the_thread_of_a_run_that_cannot_be_ended_is_left(make):
    one = make(running=True, processes=False)
    one.worker.pool = SoloPool(1)
    one._thread = 99
    one.end_in_shutdown()
    assert one.worker.left == {99}
    assert not one.already_cancelled


def test_a_run_that_cannot_be_killed_in_a_shutdown_is_told(make, caplog):
    one = make(running=True)
    one.worker.pool.terminate_job = lambda *_: 1 / 0
    one.end_in_shutdown()
    assert "could not be ended" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_run_whose_message_is_lost_leaves_celerys_books_with_an_event(make, caplog):
    one = make(running=True)
    one.eventer = NotingEvents()
    one.end_lost_run(one.delivery.handle)
    assert one.worker.pool.killed == [PID]
    assert one not in state.active_requests
    assert one.eventer.kinds == ["task-cancelled"]
    assert one.acknowledged
    assert "is ended: its message is lost" in caplog.text


def test_a_run_at_the_end_of_its_chord_is_not_killed_for_a_lost_message(make, monkeypatch):
    one = make(running=True)
    monkeypatch.setattr(module, "is_at_end", lambda _thread: True)
    one.end_lost_run(one.delivery.handle)
    assert one.worker.pool.killed == []


def test_a_run_that_is_cancelled_in_a_green_pool_is_settled_once(make, holder, monkeypatch):
    monkeypatch.setattr(Request, "cancel", lambda *_, **__: None)
    one = make(running=True, processes=False)
    one.cancel(one.worker.pool)
    assert one.already_cancelled
    one.come_back_later()
    assert holder.settled == [AFTER_AN_ERROR]


def test_a_revoked_run_is_looked_up_only_where_there_is_something_to_look_at(make, monkeypatch):
    asked = []
    monkeypatch.setattr(Request, "revoked", lambda _: asked.append(1) or 1)
    one = make()
    monkeypatch.setattr(state, "revoked", set())
    monkeypatch.setattr(state, "revoked_stamps", {})
    assert not one.revoked()
    assert asked == []
    monkeypatch.setattr(state, "revoked_stamps", {"stamp": "x"})
    assert one.revoked() is True
    monkeypatch.setattr(state, "revoked_stamps", {})
    monkeypatch.setattr(state, "revoked", {"another"})
    assert one.revoked()
    monkeypatch.setattr(state, "revoked", set())
    one.request_dict["expires"] = "2030-01-01T00:00:00+00:00"
    assert one.revoked() == bool(one.expires)


@pytest.mark.parametrize(("receive_count", "parks"), [(1, 0), (3, 0), (3, 2)])
def test_the_attempt_of_a_delivery_is_that_of_its_run(app, receive_count, parks):
    task = app.task(noop, name="task", shared=False)
    delivery = held_delivery(FakeHolder(), receive_count=receive_count)
    delivery.parks = parks
    one = request(task, delivery)
    assert one.delivery.facts.attempt == one.request_dict["retries"] + 1 == 1


def test_the_attempts_of_messages_before_it_count(app):
    task = app.task(noop, name="task", shared=False)
    one = request(task, held_delivery(FakeHolder()), retries=4)
    assert one.request_dict["retries"] == 4
    assert one._published_retries == 4
    assert one.delivery.facts.attempt == 5


def test_a_worker_hears_of_a_request_with_an_eta_and_of_no_other(app):
    task = app.task(noop, name="task", shared=False)
    heard = []
    first = request(task, held_delivery(FakeHolder()))
    first.worker.on_eta = heard.append
    message = first.message
    type(first)(message, app=app, task=task)
    assert heard == []
    message.headers["eta"] = "2030-01-01T00:00:00+00:00"
    with_eta = type(first)(message, app=app, task=task)
    assert heard == [with_eta]


def test_a_task_is_put_off_by_a_copy_or_not_at_all(make, holder):
    one = make()
    asked = []
    one.message.renewal = lambda *args: asked.append(args)
    assert not one.put_off(123.0)
    assert (holder.settled, one.acknowledged) == ([], False)
    one.message.renewal = lambda *_: "a copy"
    assert one.put_off(123.0)
    assert asked == [(123.0, 0)]
    assert (holder.settled, one.acknowledged) == (["a copy"], True)


def test_the_log_names_the_delivery_or_the_task_of_another_broker(make, caplog):
    one = make(facts={"task": "task", "task_id": "id"})
    one.log(module.logger.warning, "Task %s[%s]: %d", 5, more=1)
    one.delivery = None
    one.log(module.logger.warning, "Task %s[%s]: %d", 6, more=1)
    ours, theirs = caplog.records
    assert (ours.sqs["message_id"], ours.sqs["more"]) == ("id", 1)
    assert theirs.sqs == {"task": "task", "task_id": "task-id", "more": 1}
    assert theirs.getMessage() == "Task task[task-id]: 6"


def test_a_visibility_timeout_is_the_queues(make):
    one = make(held_by=FakeHolder(visibility_timeout=77))
    assert one.visibility_timeout == 77
    one.delivery = None
    assert one.visibility_timeout is None


POLICY = {1: 10, 2: 20}


@pytest.mark.parametrize(
    ("receive_count", "parks", "settlement"),
    [(2, 0, Hide(10)), (3, 0, Hide(20)), (3, 1, Hide(10)), (9, 0, Lapse())],
)
def test_a_rejected_message_comes_back_as_the_policy_says_for_its_attempt(
    make, receive_count, parks, settlement
):
    held_by = FakeHolder()
    held_by.options = SimpleNamespace(
        backoff_policy=lambda queue, task: Policy() if (queue, task) == ("q", "task") else None,
        for_queue=held_by.options.for_queue,
        when_lost="continue",
    )
    one = make(held_by=held_by, facts={"receive_count": receive_count})
    one.delivery.parks = parks
    assert after_rejection(one.delivery, one.task) == settlement
    assert after_rejection(one.delivery, SimpleNamespace(name="other")) is None


class Policy:
    def delay(self, failures, _error):
        return POLICY.get(failures)
