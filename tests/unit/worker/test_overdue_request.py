"""A run that shows no life is ended where the pool can, and is a failure of its task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import signals
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Terminated
from celery.worker import state
from support.factories import AFTER_AN_ERROR, FakeHolder, exc_info, held_delivery, request

from celery_sqs_visibility import InactivityError, VisibilityTask
from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.worker import worker_context
from celery_sqs_visibility.worker.visibility_request import KILLED_WITHIN_SECONDS

LIMIT = 30
KILLED = (4711, 9)


def noop():
    """A task."""


@pytest.fixture
def make(app, leases):
    """`make(facts={"receive_count": 4})`: a request whose run was silent; `steps` says what follows."""

    def make(*, processes=True, facts=None, **options):
        steps = []

        class Task(VisibilityTask):
            def on_failure(self, exc, *_):
                steps.append(("on_failure", type(exc)))

        options = {"error_visibility_timeout": 9, "inactivity_timeout": LIMIT, **options}
        app.task(noop, base=Task, name="task", shared=False, **options)
        holder = FakeHolder()
        delivery = held_delivery(holder, **(facts or {}))
        made = request(app.tasks["task"], delivery, processes=processes)
        delivery.lease = leases.take(delivery.deadline, pytest.fail)
        delivery.lease.last_sign = INACTIVE
        made.holder, made.steps, holder.settled = holder, steps, steps
        made.worker.pool.terminate_job = lambda pid, signal: steps.append((pid, signal))
        made.time_start, made.worker_pid = 1.0, 4711
        state.active_requests.add(made)
        return made

    return make


def end(one):
    """As the supervisor does."""
    one.delivery.inactivity.end_run()


@pytest.mark.parametrize("processes", [True, False])
def test_it_comes_back_and_a_process_is_killed_first_a_greenlet_last(make, app, processes, caplog):
    one = make(processes=processes)
    end(one)
    steps = [KILLED, Hide(9)]
    assert one.steps == (steps if processes else steps[::-1])
    assert app.AsyncResult(one.id).status == "RETRY"
    assert "failed at attempt 1 of 4 and comes back in 9 s: InactivityError(" in caplog.text
    one.on_failure(exc_info(Terminated(9)))  # the pool tells of its end
    assert len(one.steps) == 2


def test_at_the_last_attempt_it_is_given_up_and_errbacks_hear_of_it(make, app):
    failed = []
    receiver = signals.task_failure.connect(lambda exception, **_: failed.append(exception), weak=False)
    one = make(facts={"receive_count": 4})
    end(one)
    signals.task_failure.disconnect(receiver)
    killed, (reason, attributes), handler = one.steps
    assert (killed, reason, handler) == (
        KILLED,
        "failed at its last attempt",
        ("on_failure", InactivityError),
    )
    assert attributes["exception"].endswith("InactivityError: no sign of life for 30 s (inactivity_timeout)")
    assert [type(exc) for exc in failed] == [InactivityError]
    assert app.AsyncResult(one.id).status == "FAILURE"


def test_a_task_that_excludes_it_fails_for_good(make):
    one = make(dont_autoretry_for=(InactivityError,))
    end(one)
    assert one.steps[1][0] == "failed, and is not to be retried"


def test_its_message_is_hidden_until_the_run_is_gone(make):
    one = make(error_visibility_timeout=0)
    end(one)
    assert one.steps[1] == Hide(KILLED_WITHIN_SECONDS)


def test_what_has_ended_is_not_ended_again(make):
    read, code_over, settled = make(), make(), make()
    state.task_ready(read)
    code_over.delivery.lease.last_sign = UNWATCHED
    settled.acknowledge()
    settled.delivery.lease = None  # as a settlement leaves it
    for one in (read, code_over, settled):
        end(one)
    assert read.steps == code_over.steps == []
    assert settled.steps == [Delete()]


def test_where_the_pool_cannot_end_it_one_warning_says_what_follows(make, caplog):
    one = make(processes=False)
    one.worker.pool = SoloPool()
    end(one)
    assert one.steps == []
    assert "has shown no life for 30 s, and its pool has no way to end it" in caplog.text


def test_in_processes_it_is_ended_where_results_are_read(make, monkeypatch, leases):
    monkeypatch.setattr(worker_context, "lease_table", lambda: leases)
    one, called = make(), []
    one.worker.hub = SimpleNamespace(call_soon=called.append)
    end(one)
    assert one.steps == []
    called[0]()
    assert one.steps == [KILLED, Hide(9)]


def test_an_error_leaves_neither_the_event_loop_nor_the_message(make, monkeypatch, caplog):
    one = make()
    monkeypatch.setattr(one.task.backend, "mark_as_retry", lambda *_, **__: 1 // 0)
    end(one)
    assert one.steps == [KILLED, Hide(9)]
    assert "could not be ended" in caplog.text


def test_a_failure_that_cannot_be_stored_comes_back(make, monkeypatch):
    one = make(max_retries=0)
    monkeypatch.setattr(one.task.backend, "mark_as_failure", lambda *_, **__: 1 // 0)
    end(one)
    assert one.steps[1] == AFTER_AN_ERROR


def test_a_task_that_declares_nothing_is_not_watched(make):
    assert make(inactivity_timeout=None).delivery.inactivity is None
