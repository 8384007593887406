"""A request settles its delivery once, ends its own run alone, and comes back when killed for nothing."""

import gc
import threading
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from billiard.pool import Pool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Ignore, NotRegistered, Reject, Retry, Terminated, WorkerLostError
from celery.worker import state
from celery.worker.request import Request
from support.factories import AFTER_AN_ERROR, PID, FakeHolder, exc_info, held_delivery, noop, renewal, request

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Why
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.events import Finished, subscribe
from celery_sqs_visibility.worker import request as module
from celery_sqs_visibility.worker import worker_context
from celery_sqs_visibility.worker.batches import BatchedRequest
from celery_sqs_visibility.worker.request import GivenBackError

GIVEN_UP = [("rejected by the task", {})]


@pytest.fixture
def running(make):
    return make(running=True)


class Events:
    """A dispatcher that takes events, and notes their kinds."""

    enabled = True

    def __init__(self, groups=()):
        self.groups, self.kinds = groups, []

    def send(self, kind, **_):
        self.kinds.append(kind)


def raising(exc):
    def fail(*_args, **_options):
        raise exc

    return fail


def test_a_request_that_nobody_refers_to_goes_and_gives_back_its_slot(make):
    gone = weakref.ref(make().delivery)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("started", [True, False])
def test_an_acknowledged_message_is_deleted_once_and_its_run_has_finished_if_there_was_one(
    make, holder, started
):
    finished = []
    forget = subscribe(finished.append, Finished)
    one = make()
    if started:
        one.on_accepted(PID, 0.0)
    one.acknowledge()
    one.acknowledge()
    forget()
    assert holder.settled == [Delete()]
    assert len(finished) == started


@pytest.mark.parametrize(
    ("exc", "settled"),
    [
        (Reject("no", requeue=True), [RELEASE]),
        (Reject("no"), GIVEN_UP),
        (Reject(ValueError("no")), GIVEN_UP),
        (WorkerLostError("gone"), [AFTER_AN_ERROR]),
    ],
)
def test_a_task_may_reject_its_message_and_celerys_own_rejection_comes_back_later(make, holder, exc, settled):
    one = make(running=True, reject_on_worker_lost=True)
    one.on_failure(exc_info(exc))
    assert holder.settled == settled


def unpublished_retry(task, monkeypatch):
    """What a run ends with whose `retry` could not be published: a Reject of Celery's."""
    publishing = SimpleNamespace(apply_async=raising(ConnectionError("no broker")))
    monkeypatch.setattr(task, "signature_from_request", lambda *_, **__: publishing)
    task.push_request(called_directly=False, retries=0)
    with pytest.raises(Reject) as caught:
        task.retry(countdown=1)
    task.pop_request()
    return ExceptionInfo((caught.type, caught.value, caught.tb))


@pytest.mark.parametrize(
    ("max_retries", "receive_count", "parks", "settled"),
    [
        (3, 3, 0, [AFTER_AN_ERROR]),
        (3, 4, 0, GIVEN_UP),
        (3, 5, 2, [AFTER_AN_ERROR]),
        (3, 6, 2, GIVEN_UP),
        (None, 99, 0, [AFTER_AN_ERROR]),
    ],
)
def test_a_run_whose_retry_could_not_be_published_comes_back_while_it_has_attempts(
    make, holder, monkeypatch, max_retries, receive_count, parks, settled
):
    one = make(running=True, max_retries=max_retries, facts={"receive_count": receive_count})
    one.delivery.parkings = parks
    one.on_failure(unpublished_retry(one.task, monkeypatch))
    assert holder.settled == settled
    assert one not in state.active_requests


@pytest.mark.parametrize(
    ("end", "arguments"),
    [
        ("on_failure", [exc_info(ValueError())]),
        ("on_retry", [exc_info(Retry())]),
        ("on_timeout", [False, 1.0]),
    ],
)
def test_a_message_comes_back_when_celery_fails_to_end_its_run(running, holder, monkeypatch, end, arguments):
    monkeypatch.setattr(Request, end, raising(ConnectionError("the result backend is down")))
    with pytest.raises(ConnectionError):
        getattr(running, end)(*arguments)
    assert holder.settled == [AFTER_AN_ERROR]


def test_a_revocation_that_cannot_be_looked_up_has_it_come_back_and_raises_nothing(
    running, holder, monkeypatch
):
    monkeypatch.setattr(state, "revoked", {running.id})
    monkeypatch.setattr(Request, "revoked", raising(ConnectionError("the result backend is down")))
    assert running.revoked()
    assert holder.settled == [AFTER_AN_ERROR]
    assert running not in state.active_requests


@pytest.mark.parametrize(("acks_late", "calls"), [(True, []), (False, ["ran"])])
def test_the_end_of_a_run_matters_to_its_holder_where_it_was_acknowledged_before(
    make, holder, acks_late, calls
):
    one = make(acks_late=acks_late)
    one.ended()
    assert holder.calls == calls
    assert one.delivery.acknowledged_early is not acks_late


@pytest.mark.parametrize(
    ("receive_count", "parks", "redelivered"), [(1, 0, False), (2, 0, True), (2, 1, False)]
)
def test_a_task_knows_its_delivery(app, receive_count, parks, redelivered):
    task = app.task(noop, name="task", shared=False)
    delivery = held_delivery(FakeHolder(max_receive_count=5), receive_count=receive_count, first_received=9.0)
    delivery.parkings = parks
    one = request(task, delivery)
    assert one.request_dict["delivery_info"]["redelivered"] is redelivered
    assert one.request_dict["sqs"] == {
        "queue": "q",
        "message_id": "id",
        "receive_count": receive_count,
        "first_receive_time": 9.0,
        "horizon": delivery.horizon,
        "max_receive_count": 5,
    }


@pytest.mark.parametrize(
    ("receive_count", "parks", "kept", "told"),
    [(1, 0, False, 0), (2, 1, False, 0), (3, 1, False, 1), (3, 1, True, 0)],
)
def test_a_message_that_another_process_received_before_is_told_with_its_receive(
    app, caplog, receive_count, parks, kept, told
):
    caplog.set_level("INFO")
    delivery = held_delivery(FakeHolder(kept=kept), receive_count=receive_count)
    delivery.parkings = parks
    request(app.task(noop, name="task", shared=False), delivery)
    assert caplog.text.count("Task task[task-id]: receive 3; ") == told


@pytest.mark.parametrize("newer", [{}, {"emit_retry": False}], ids=["Celery 5.5", "newer ones"])
@pytest.mark.parametrize("processes", [True, False])
def test_a_run_knows_that_it_is_cancelled_before_it_is_killed(make, holder, monkeypatch, newer, processes):
    def cancel(self, pool, signal=None, **options):
        """A result backend that does not answer raises from Celery's own, after the kill."""
        assert self._already_cancelled
        assert (signal, options) == ("TERM", newer)
        pool.terminate_job(self.worker_pid, signal)
        raise ConnectionError("the result backend is down")

    monkeypatch.setattr(Request, "cancel", cancel)
    one = make(running=True, processes=processes)
    with pytest.raises(ConnectionError):
        one.cancel(one.worker.pool, "TERM", **newer)
    assert one.worker.pool.killed == [PID]
    assert holder.settled == ([] if processes else [AFTER_AN_ERROR])


def test_a_pool_that_cannot_end_runs_is_not_asked_to(running, holder, caplog):
    running.worker.pool = SoloPool(1)
    running.cancel(running.worker.pool)
    running.end_lost_run(running.delivery.handle)
    assert holder.settled == []
    assert caplog.text.count("cannot be ended: its pool has no way to") == 2


def test_what_was_acknowledged_before_is_cancelled_all_the_same(running, holder):
    running.acknowledged = True
    running.cancel(running.worker.pool)
    assert running.worker.pool.killed == [PID]
    assert holder.settled == []


@pytest.mark.parametrize(
    ("cancelled", "exc"),
    [(True, Terminated(15)), (True, WorkerLostError("gone")), (True, SystemExit(1)), (False, Terminated(15))],
)
def test_what_comes_of_a_process_that_was_killed_is_not_its_runs_end(
    running, holder, monkeypatch, caplog, cancelled, exc
):
    monkeypatch.setattr(Request, "on_failure", lambda *_: pytest.fail("Celery would delete it"))
    if cancelled:
        running.cancel(running.worker.pool)
    running.on_failure(exc_info(exc))
    assert holder.settled == [RELEASE]
    assert running not in state.active_requests
    assert cancelled or "comes back: its process was killed" in caplog.text


def lost_by(status):
    """What a pool says of a run whose process ended with that status."""
    lost = []
    Pool.mark_as_worker_lost(None, SimpleNamespace(_job=3, _set=lambda _, told: lost.append(told[1])), status)
    return lost[0]


@pytest.mark.parametrize("status", [-15, 15, 3, 1, 70])
@pytest.mark.parametrize("seen", ["before", "meanwhile"])
def test_a_run_whose_process_was_told_to_end_with_the_worker_is_given_back(
    running, holder, monkeypatch, status, seen
):
    see = partial(monkeypatch.setattr, state, "should_stop", 0)
    if seen == "before":
        see()
    monkeypatch.setattr(module, "sleep", lambda _: see())  # the signal comes while it is waited for
    running.on_failure(lost_by(status))
    assert holder.settled == [RELEASE]
    assert running not in state.active_requests


@pytest.mark.parametrize(
    ("status", "ending", "early"),
    [(-9, True, False), (-11, True, False), (15, False, False), (15, True, True)],
)
def test_a_run_that_was_lost_otherwise_or_has_no_message_has_failed(
    running, holder, monkeypatch, status, ending, early
):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda self, exc_info, *_: told.append(exc_info))
    monkeypatch.setattr(module, "sleep", lambda _: None)
    monkeypatch.setattr(state, "should_stop", 0 if ending else None)
    running.acknowledged = early
    running.on_failure(lost_by(status))
    assert len(told) == 1
    assert holder.settled == []


class ArrayMemoryError(MemoryError):
    """As numpy's."""


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", [MemoryError, ArrayMemoryError])
def test_a_run_that_ran_out_of_memory_does_not_end_the_worker(running, holder, monkeypatch, kind, early):
    sent = []
    monkeypatch.setattr(
        running, "send_event", lambda type_, **fields: sent.append((type_, fields["exception"]))
    )
    running.acknowledged = early
    running.on_failure(exc_info(kind("no room")), return_ok=True)
    assert holder.settled == ([] if early else [AFTER_AN_ERROR])
    assert sent == ([("task-failed", repr(kind("no room")))] if early else [])
    assert running not in state.active_requests


def test_what_had_ended_before_it_was_cancelled_has_ended(running, holder):
    running.cancel(running.worker.pool)
    running.on_failure(exc_info(ValueError("its own")), return_ok=True)
    assert holder.settled == [Delete()]


def test_a_run_whose_message_is_lost_is_settled_first_and_then_ended_with_an_event(running, holder, caplog):
    running.eventer = Events()
    running.worker.pool.terminate_job = lambda pid, _signal: holder.settled.append(pid)
    running.end_lost_run(running.delivery.handle)
    assert (running.acknowledged, running in state.active_requests) == (True, False)
    running.on_failure(exc_info(Terminated(15)))
    assert holder.settled == [Lapse(), PID]
    assert running.eventer.kinds == ["task-cancelled"]
    assert f"Task {running.name}[{running.id}] is ended: its message is lost" in caplog.text


def test_a_run_that_ended_first_or_whose_message_came_back_here_or_that_has_not_begun_is_not_ended(
    make, running, holder
):
    waiting = make()
    waiting.end_lost_run(waiting.delivery.handle)
    assert holder.settled == []
    holder.settled.append(Delete())  # it is held no more
    running.end_lost_run(running.delivery.handle)
    assert running.worker.pool.killed == waiting.worker.pool.killed == []
    assert not running.acknowledged


@pytest.mark.parametrize("came_back", [False, True])
def test_what_was_lost_between_its_dispatch_and_its_run_is_ended_as_it_begins(make, came_back):
    one = make(when_lost="terminate")
    one.delivery.lost = True
    one.end_lost_run(one.delivery.handle)
    if came_back:
        one.delivery.lost = False
    one.on_accepted(PID, 0.0)
    assert one.worker.pool.killed == ([] if came_back else [PID])


@pytest.mark.parametrize("own", ["terminate", "continue", None])
@pytest.mark.parametrize("option", ["terminate", "continue"])
def test_the_tasks_own_on_lost_goes_before_the_transports(make, own, option):
    one = make(when_lost=own, held_by=FakeHolder(when_lost=option))
    assert (one.delivery.on_lost is not None) is ((own or option) == "terminate")


def test_in_processes_it_is_ended_where_results_are_read_unless_its_result_was_read(
    running, holder, monkeypatch
):
    monkeypatch.setattr(worker_context, "lease_table", LeaseTable)
    called = []
    running.worker.hub = SimpleNamespace(call_soon=called.append)
    running.end_lost_run(running.delivery.handle)
    assert holder.settled == [Lapse()]
    assert running.worker.pool.killed == []
    state.task_ready(running)  # its result is read, and its process has another's run by now
    called[0]()
    assert running.worker.pool.killed == []


def test_a_run_that_was_revoked_stays_revoked(running, holder, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda self, exc_info, *_: told.append(exc_info))
    monkeypatch.setattr(Request, "terminate", lambda *_: None)
    running.terminate(running.worker.pool)
    running.on_failure(exc_info(Terminated(15)))
    assert len(told) == 1
    assert holder.settled == []
    assert running.delivery.outcome == "discarded"


def test_a_run_that_its_pool_cannot_end_is_counted_as_it_ends(running, monkeypatch):
    def terminate(*_):
        raise NotImplementedError

    monkeypatch.setattr(Request, "terminate", terminate)
    with pytest.raises(NotImplementedError):
        running.terminate(running.worker.pool)
    assert running.delivery.outcome is None


def test_one_that_is_revoked_before_it_begins_is_counted_as_it_is_settled(make, monkeypatch):
    monkeypatch.setattr(Request, "terminate", lambda *_: None)
    one = make()
    one.terminate(one.worker.pool)
    assert one.delivery.outcome is None


@pytest.mark.parametrize(
    ("groups", "sent"), [(set(), ["task-started"]), ({"worker"}, []), ({"worker", "task"}, ["task-started"])]
)
def test_an_event_of_a_task_is_sent_where_the_dispatcher_takes_some(make, groups, sent):
    one = make()
    one.eventer = Events(groups)
    one.on_accepted(PID, 0.0)
    assert one.eventer.kinds == sent


def test_of_a_message_from_another_broker_nothing_is_settled_or_measured_here(running, holder):
    running.delivery = None
    running.measure_run()
    running.settle(Delete())
    assert running.acknowledged
    assert not running._has_attempts_left()
    assert holder.calls == holder.settled == []


def test_a_message_from_another_broker_is_acknowledged_there(make):
    one, acknowledged = make(), []
    one.delivery, one._on_ack = None, lambda *_: acknowledged.append(one.id)
    one.acknowledge()
    assert acknowledged == [one.id]


@pytest.mark.parametrize("requeue", [False, True])
def test_a_rejection_is_an_event_as_celery_sends_it(running, requeue):
    told = []
    running.eventer = SimpleNamespace(
        enabled=True, groups=set(), send=lambda kind, **fields: told.append((kind, fields.get("requeue")))
    )
    running.reject(requeue=requeue)
    assert told == [("task-rejected", requeue)]


def test_what_was_acknowledged_before_is_not_rejected(running, holder):
    running.acknowledge()
    running.reject(requeue=True)
    assert holder.settled == [Delete()]


@pytest.fixture
def make_leased(make):
    def make_with_lease(**options):
        made = make(**options)
        made.delivery.lease = SimpleNamespace(key=("slot", 7))
        return made

    return make_with_lease


def test_a_run_in_a_process_has_its_lease_before_it_is_sent_there(make_leased):
    one = make_leased()
    assert "visibility_lease" not in one.request_dict
    one.dispatch()
    assert one.request_dict["visibility_lease"] == ("slot", 7)


def test_a_run_in_a_thread_has_its_lease_when_it_begins_and_knows_its_thread(make_leased):
    one = make_leased(processes=False)
    one.on_accepted(PID, 0.0)
    assert one.request_dict["visibility_lease"] == ("slot", 7)
    assert one._thread == threading.get_ident()


def test_a_run_in_a_process_is_on_no_thread_of_this_one(make_leased):
    one = make_leased()
    one.on_accepted(PID, 0.0)
    assert one._thread is None
    assert not one.is_on_main_thread


def test_only_a_run_of_a_solo_pool_is_on_the_main_thread(make_leased):
    one = make_leased(processes=False)
    one.on_accepted(PID, 0.0)
    assert not one.is_on_main_thread, "a green pool ends its runs itself"
    one.worker.pool = SoloPool(1)
    assert one.is_on_main_thread
    one._thread = -1
    assert not one.is_on_main_thread


@pytest.mark.parametrize("processes", [True, False])
def test_a_run_that_was_given_back_leaves_celerys_books_and_takes_no_lease(make_leased, holder, processes):
    one = make_leased(running=True, processes=processes)
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
def test_an_outcome_is_noted_for_metrics(make_leased, monkeypatch, end, arguments, outcome):
    one = make_leased(running=True)
    before = one.delivery.outcome
    monkeypatch.setattr(Request, end, lambda *_: None)
    getattr(one, end)(*arguments)
    noted = one.delivery.outcome
    assert noted == (before if outcome == "succeeded" else outcome)


def test_a_failure_is_celerys_to_settle_with_all_that_it_was_told(make_leased, holder, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda _, *args: told.append(args) or "answer")
    failure = exc_info(ValueError())
    assert make_leased(running=True).on_failure(failure, False, True) == "answer"
    assert told == [(failure, False, True)]
    assert holder.settled == []


def test_a_task_that_its_process_does_not_know_comes_back(make_leased, holder, caplog):
    one = make_leased(running=True)
    one.on_failure(exc_info(NotRegistered("task")))
    assert holder.settled == [AFTER_AN_ERROR]
    assert one not in state.active_requests
    assert "its process was forked before the task was registered" in caplog.text


def test_a_task_that_nobody_knows_fails_as_celery_says(make_leased, monkeypatch):
    told = []
    monkeypatch.setattr(Request, "on_failure", lambda *args: told.append(args))
    make_leased().on_failure(exc_info(NotRegistered("task")), return_ok=True)
    assert len(told) == 1


def test_a_run_that_ends_in_a_shutdown_is_killed_and_celery_knows(make_leased):
    one = make_leased(running=True)
    one.end_in_shutdown()
    assert one.worker.pool.killed == [PID]
    assert one.acknowledged
    assert one.already_cancelled


@pytest.mark.parametrize(("processes", "told"), [(True, True), (False, False)])
def test_in_a_shutdown_a_green_pool_tells_of_no_success_of_a_run_that_it_killed(make_leased, processes, told):
    one = make_leased(running=True, processes=processes)
    one.eventer = Events()
    one.end_in_shutdown()
    assert (one.eventer is not None) == told


def test_in_a_shutdown_the_thread_of_a_run_that_cannot_be_ended_is_left(make_leased):
    one = make_leased(running=True, processes=False)
    one.worker.pool = SoloPool(1)
    one._thread = 99
    one.end_in_shutdown()
    assert one.worker.left == {99}
    assert not one.already_cancelled


def test_a_run_that_cannot_be_killed_in_a_shutdown_is_told(make_leased, caplog):
    one = make_leased(running=True)
    one.worker.pool.terminate_job = lambda *_: 1 / 0
    one.end_in_shutdown()
    assert "could not be ended" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_run_at_the_end_of_its_chord_is_not_killed_for_a_lost_message(make_leased, monkeypatch):
    one = make_leased(running=True)
    monkeypatch.setattr(module, "is_at_end", lambda _thread: True)
    one.end_lost_run(one.delivery.handle)
    assert one.worker.pool.killed == []


def test_a_revoked_run_is_looked_up_only_where_there_is_something_to_look_at(make_leased, monkeypatch):
    asked = []
    monkeypatch.setattr(Request, "revoked", lambda _: asked.append(1) or 1)
    one = make_leased()
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


@pytest.mark.parametrize(
    ("receive_count", "parks", "published"), [(1, 0, 0), (3, 0, 0), (3, 2, 0), (1, 0, 4)]
)
def test_the_attempt_of_a_delivery_is_that_of_its_run_after_those_of_messages_before_it(
    app, receive_count, parks, published
):
    task = app.task(noop, name="task", shared=False)
    delivery = held_delivery(FakeHolder(), receive_count=receive_count)
    delivery.parkings = parks
    one = request(task, delivery, retries=published)
    assert one.delivery.facts.attempt == one.request_dict["retries"] + 1 == published + 1


def test_a_worker_hears_of_a_request_with_an_eta_and_of_no_other(app):
    app.task(noop, name="task", shared=False)
    task, heard = app.tasks["task"], []
    first = request(task, held_delivery(FakeHolder()))
    first.worker.waiting = SimpleNamespace(wait_for_eta=heard.append)
    message = first.message
    type(first)(message, app=app, task=task)
    assert heard == []
    message.headers["eta"] = "2030-01-01T00:00:00+00:00"
    with_eta = type(first)(message, app=app, task=task)
    assert heard == [with_eta]
    type("Collected", (BatchedRequest, type(first)), {})(message, app=app, task=task)
    assert heard == [with_eta], "its task has its own strategy"


@pytest.mark.parametrize(("receive_count", "parks", "known"), [(1, 0, True), (3, 2, True), (3, 1, False)])
def test_the_facts_of_a_first_run_have_its_eta(app, receive_count, parks, known):
    task = app.task(noop, name="task", shared=False)
    delivery = held_delivery(FakeHolder(), receive_count=receive_count)
    delivery.parkings = parks
    first = request(task, held_delivery(FakeHolder()))
    message = first.message
    message.delivery = delivery
    message.headers["eta"] = "2030-01-01T00:00:00+00:00"
    with_eta = type(first)(message, app=app, task=task)
    assert with_eta.delivery.facts.eta == (1_893_456_000.0 if known else None)


def test_a_task_is_put_off_by_a_copy_or_not_at_all(make_leased, holder, system_clock):
    one = make_leased()
    asked = []
    one.message.renewal = lambda *args: asked.append(args)
    assert not one.put_off(123.0)
    assert (holder.settled, one.acknowledged) == ([], False)
    copy = renewal()
    one.message.renewal = lambda *_: copy
    assert one.put_off(123.0, Why.PAUSE)
    ((eta, retries),) = asked
    assert (eta - system_clock.wall(), retries) == (123, 0)
    assert (holder.settled, one.acknowledged) == ([replace(copy, why=Why.PAUSE)], True)


def test_the_log_names_the_delivery_or_the_task_of_another_broker(make_leased, caplog):
    one = make_leased(facts={"task": "task", "task_id": "id"})
    one.log(module.logger.warning, "Task %s[%s]: %d", 5, more=1)
    one.delivery = None
    one.log(module.logger.warning, "Task %s[%s]: %d", 6, more=1)
    ours, theirs = caplog.records
    assert (ours.sqs["message_id"], ours.sqs["more"]) == ("id", 1)
    assert theirs.sqs == {"task": "task", "task_id": "task-id", "more": 1}
    assert theirs.getMessage() == "Task task[task-id]: 6"


def test_a_visibility_timeout_is_the_queues(make_leased):
    one = make_leased(held_by=FakeHolder(visibility_timeout=77))
    assert one.visibility_timeout == 77
    one.delivery = None
    assert one.visibility_timeout is None


POLICY = {"url": "https://sqs/1/q", "backoff_policy": {1: 10, 2: 20.5}, "backoff_tasks": ["named"]}


FAILURE, REJECTED, REQUEUED = ValueError(), Reject("no"), Reject("no", requeue=True)


@pytest.mark.parametrize(
    ("name", "exc", "receive_count", "parks", "settled"),
    [
        ("named", FAILURE, 1, 0, Hide(10)),
        ("named", FAILURE, 2, 0, Hide(21)),
        ("named", FAILURE, 3, 0, Lapse()),
        ("named", FAILURE, 3, 1, Hide(21)),
        ("named", REJECTED, 1, 0, Hide(10)),
        ("named", REJECTED, 3, 0, Lapse()),
        ("named", REQUEUED, 1, 0, RELEASE),
        ("other", FAILURE, 1, 0, AFTER_AN_ERROR),
        ("other", REJECTED, 1, 0, GIVEN_UP[0]),
    ],
)
def test_a_rejected_message_comes_back_as_the_policy_of_its_queue_says(
    app, name, exc, receive_count, parks, settled
):
    holder = FakeHolder(predefined_queues={"q": POLICY})
    options = {"acks_late": True, "acks_on_failure_or_timeout": False}
    task = app.task(noop, name=name, shared=False, **options)
    one = request(task, held_delivery(holder, receive_count=receive_count))
    one.delivery.parkings = parks
    one.on_failure(exc_info(exc))
    assert holder.settled == [settled]


def test_a_visibility_task_that_rejects_its_message_gives_it_up(app):
    holder = FakeHolder(predefined_queues={"q": POLICY})
    task = app.task(noop, name="named", shared=False, base=VisibilityTask)
    request(task, held_delivery(holder)).on_failure(exc_info(REJECTED))
    assert holder.settled == [GIVEN_UP[0]]
