"""What Celery's tracer is given: errors outside the task's own code, and what is stored of a run."""

from __future__ import annotations

import pytest
from celery import states
from celery.exceptions import Reject, Retry
from support.factories import trace

from celery_sqs_visibility.task.tracing import VisibilityRetry


@pytest.fixture
def stored(app, monkeypatch):
    """The (state, result) that the result backend was given."""
    stored = []

    def store_result(_id, result, state, **_options):
        stored.append((state, result))

    monkeypatch.setattr(app.backend, "store_result", store_result)
    return stored


@pytest.fixture
def down(app, monkeypatch):
    """The result backend fails; call it with how often."""

    def fail(*_args, **_options):
        raise ConnectionError("the backend is down")

    for name in ("mark_as_done", "mark_as_failure", "mark_as_retry", "store_result"):
        monkeypatch.setattr(app.backend, name, fail)


def succeed():
    return 7


def test_a_success_is_celerys(app, stored):
    traced = trace(app.task(succeed, shared=False))
    assert (traced.retval, traced.info) == (7, None)
    assert stored == [(states.SUCCESS, 7)]


def test_a_success_that_cannot_be_stored_comes_back(app, down, caplog):
    traced = trace(app.task(succeed, shared=False, error_visibility_timeout=60))
    assert (traced.info.state, traced.info.retval.delay) == (states.RETRY, 60)
    assert "Celery could not record how task" in caplog.text


def test_at_the_last_attempt_it_is_celerys_own_error(app, down):
    task = app.task(succeed, shared=False)
    with pytest.warns(RuntimeWarning, match="outside body"), pytest.raises(ConnectionError):
        trace(task, retries=3)


@pytest.mark.parametrize("retries", [0, 3])
def test_out_of_memory_is_not_for_us(app, monkeypatch, retries):
    def fail(*_args, **_options):
        raise MemoryError

    monkeypatch.setattr(app.backend, "mark_as_done", fail)
    with pytest.raises(MemoryError):
        trace(app.task(succeed, shared=False), retries=retries)


def test_a_decision_of_the_tasks_own_stands_where_it_cannot_be_stored(app, down):
    @app.task(shared=False, bind=True, max_retries=0, error_visibility_timeout=60)
    def retrying(self):
        raise self.retry(countdown=5, max_retries=9, queue=None)

    @app.task(shared=False)
    def publishing():
        raise Retry("published")

    assert trace(retrying, visibility_max_retries=9).info.retval.delay == 5
    assert type(trace(publishing, retries=9).info.retval) is Retry


def test_a_reject_of_the_tasks_own_is_not_celerys_failure(app, stored):
    rejected = Reject("no", requeue=False)

    @app.task(shared=False)
    def rejecting():
        raise rejected

    assert trace(rejecting).info.retval is rejected


def test_what_celery_could_not_store_of_a_failure_is_that_failure(app, monkeypatch):
    final = ValueError("no")
    failures = []

    def mark_as_failure(_id, exc, *_args, **_options):
        failures.append(exc)
        if len(failures) == 1:
            raise ConnectionError("the backend is down")

    monkeypatch.setattr(app.backend, "mark_as_failure", mark_as_failure)

    @app.task(shared=False, max_retries=0)
    def failing():
        raise final

    with pytest.warns(RuntimeWarning, match="outside body"):
        trace(failing)
    assert failures == [final, final]


class TestBeyondTheLimit:
    """A run that a release or a lost worker has brought beyond the limit leaves a trace of its beginning."""

    def test_a_run_within_it_leaves_none(self, app, stored):
        trace(app.task(succeed, shared=False), retries=3)
        assert stored == [(states.SUCCESS, 7)]

    def test_its_beginning_is_stored(self, app, stored):
        trace(app.task(succeed, shared=False), retries=4)
        assert [state for state, _ in stored] == [states.STARTED, states.SUCCESS]
        assert stored[0][1].keys() == {"pid", "hostname"}

    def test_not_for_a_task_without_results(self, app, stored):
        trace(app.task(succeed, shared=False, ignore_result=True), retries=4)
        assert states.STARTED not in dict(stored)

    def test_a_release_takes_that_back(self, app, stored):
        @app.task(shared=False, bind=True)
        def releasing(self):
            self.visibility.release()

        trace(releasing, retries=4)
        assert [state for state, _ in stored] == [states.STARTED, states.RETRY]

    def test_a_backend_that_is_down_does_not_keep_it_from_running(self, app, down, caplog):
        @app.task(shared=False, bind=True)
        def releasing(self):
            self.visibility.release()

        assert trace(releasing, retries=4).info.state == states.REJECTED
        assert "could not be stored" in caplog.text


def test_a_member_of_a_chord_is_run_again_though_its_result_is_stored(app):
    app.conf.worker_deduplicate_successful_tasks = True
    runs = []

    @app.task(shared=False)
    def member():
        runs.append(1)

    request = {"id": "the-same", "delivery_info": {"redelivered": True}}
    app.backend.store_result("the-same", None, states.SUCCESS)
    trace(member, **request)
    assert not runs
    trace(member, chord={"task": "body"}, **{**request, "id": "the-same"})
    assert runs


def test_a_failure_that_comes_back_calls_no_errback(app, published, stored):
    @app.task(shared=False)
    def failing():
        raise ValueError("no")

    errback = app.signature("errback")
    assert isinstance(trace(failing, errbacks=[errback]).info.retval, VisibilityRetry)
    assert not published
