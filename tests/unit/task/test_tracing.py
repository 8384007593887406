"""How Celery's tracer records the runs of our tasks, and the watch over silent ones."""

import gc
import logging
import math
import weakref

import pytest
from celery import states
from celery.exceptions import Reject, Retry
from support.factories import trace

from celery_sqs_visibility import InactivityError
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.task.base import VisibilityTask, log_errors
from celery_sqs_visibility.task.retries import VisibilityRetry


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
    """The result backend fails."""
    for name in ("mark_as_done", "mark_as_failure", "mark_as_retry", "store_result"):
        monkeypatch.setattr(app.backend, name, raising(ConnectionError("the backend is down")))


def succeed():
    return 7


def raising(exc):
    def fail(*_args, **_options):
        raise exc

    return fail


def test_a_success_that_cannot_be_stored_comes_back_but_at_the_last_attempt_is_celerys_error(
    app, down, caplog
):
    task = app.task(succeed, shared=False, error_visibility_timeout=60)
    info = trace(task).info
    assert (info.state, info.retval.delay) == (states.RETRY, 60)
    assert "Celery could not record how task" in caplog.text
    with pytest.warns(RuntimeWarning, match="outside body"), pytest.raises(ConnectionError):
        trace(task, retries=3)


@pytest.mark.parametrize(
    ("lost", "retries", "told"),
    [
        (False, 0, [states.RETRY]),
        (True, 0, []),  # another run may have stored how the task ended
        (True, 3, [states.FAILURE]),
    ],
)
def test_a_run_that_has_lost_its_message_stores_no_retry(
    app, stored, leases, monkeypatch, lost, retries, told
):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    lease = leases.take(SYSTEM_CLOCK.monotonic() + 60, print, math.inf)
    lease.lost = lost
    task = app.task(raising(ValueError()), name="failing", shared=False)
    trace(task, retries=retries, visibility_lease=lease.key)
    assert [state for state, _ in stored] == told


@pytest.mark.parametrize("retries", [0, 3])
def test_out_of_memory_is_not_for_us(app, monkeypatch, retries):
    monkeypatch.setattr(app.backend, "mark_as_done", raising(MemoryError()))
    with pytest.raises(MemoryError):
        trace(app.task(succeed, shared=False), retries=retries)


def test_a_decision_of_the_tasks_own_stands_where_it_cannot_be_stored(app, down):
    @app.task(shared=False, bind=True, max_retries=0, error_visibility_timeout=60)
    def retrying(self):
        raise self.retry(countdown=5, max_retries=9, queue=None)

    publishing = app.task(raising(Retry("published")), shared=False)
    assert trace(retrying, visibility_max_retries=9).info.retval.delay == 5
    assert type(trace(publishing, retries=9).info.retval) is Retry


def test_what_celery_could_not_store_of_a_failure_is_that_failure(app, monkeypatch):
    final = ValueError("no")
    failures = []

    def mark_as_failure(_id, exc, *_args, **_options):
        failures.append(exc)
        if len(failures) == 1:
            raise ConnectionError("the backend is down")

    monkeypatch.setattr(app.backend, "mark_as_failure", mark_as_failure)
    with pytest.warns(RuntimeWarning, match="outside body"):
        trace(app.task(raising(final), shared=False, max_retries=0))
    assert failures == [final, final]


class TestBeyondTheLimit:
    """A run that a release or a lost worker has brought beyond the limit leaves a trace of its beginning."""

    @pytest.mark.parametrize(
        ("retries", "options", "states_stored"),
        [
            (3, {}, [states.SUCCESS]),
            (4, {}, [states.STARTED, states.SUCCESS]),
            (4, {"ignore_result": True}, []),
        ],
        ids=["not within it", "beyond it", "not of a task without results"],
    )
    def test_its_beginning_is_stored(self, app, stored, retries, options, states_stored):
        trace(app.task(succeed, shared=False, **options), retries=retries)
        assert [state for state, _ in stored] == states_stored
        if states.STARTED in states_stored:
            assert stored[0][1].keys() == {"pid", "hostname"}

    @pytest.fixture
    def releasing(self, app):
        @app.task(shared=False, bind=True)
        def releasing(self):
            self.visibility.release()

        return releasing

    def test_a_release_takes_that_back(self, releasing, stored):
        trace(releasing, retries=4)
        assert [state for state, _ in stored] == [states.STARTED, states.RETRY]

    def test_a_backend_that_is_down_does_not_keep_it_from_running(self, releasing, down, caplog):
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
    failing = app.task(raising(ValueError("no")), shared=False)
    assert isinstance(trace(failing, errbacks=[app.signature("errback")]).info.retval, VisibilityRetry)
    assert not published


def test_a_retry_of_a_task_without_results_is_not_stored_and_its_handler_is_called(app, stored):
    called = []

    class Task(VisibilityTask):
        def on_retry(self, exc, *_):
            called.append(type(exc))

    failing = app.task(raising(ValueError("no")), base=Task, shared=False, ignore_result=True)
    assert trace(failing).info.state == states.RETRY
    assert (called, stored) == ([ValueError], [])


def test_after_return_that_raises_does_not_change_the_outcome(app, stored, caplog):
    task = app.task(succeed, shared=False, after_return=raising(AttributeError("start")))
    assert trace(task).info is None
    assert [state for state, _ in stored] == [states.SUCCESS]
    assert "after_return of task" in caplog.text


def test_an_error_of_a_handler_is_raised_where_no_message_waits_for_an_outcome(app):
    with pytest.raises(ZeroDivisionError):
        log_errors(app.task(succeed, shared=False), raising(ZeroDivisionError()), (), {}, name="on_failure")


@pytest.mark.parametrize(
    "end",
    [
        lambda _task: succeed(1),
        lambda task: task.retry(countdown=1),
        lambda task: task.retry(args=(), countdown=1),
        lambda task: task.visibility.continue_later(),
    ],
    ids=["error", "retry", "published retry", "continuation"],
)
def test_what_error_trackers_see_of_a_retry_is_celerys_own_class(app, end):
    """They wrap the task. New Relic's agent ignores `celery.exceptions:Retry` by name, and no subclass."""

    def watched(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except Exception as exc:
            seen.append(type(exc))
            raise

    def ending(self):
        end(self)

    seen = []
    app.task(ending, name="ending", shared=False, bind=True)
    task = app.tasks["ending"]
    run, task.run = task.run, watched
    assert trace(task).info.state == states.RETRY
    assert seen == [Retry]


class Large:
    """What a run holds in a variable."""


def ends(task, end):
    large = Large()
    task.variables.append(weakref.ref(large))
    if end == "raises":
        {}["no such key"]
    if end == "raises from another":
        try:
            {}["no such key"]
        except KeyError as error:
            raise ValueError(end) from error
    if end == "retries for an error":
        try:
            {}["no such key"]
        except KeyError as error:
            raise task.retry(exc=error) from error
    if end == "rejects":
        raise Reject(ValueError(end))
    raise task.retry(countdown=1)


@pytest.fixture
def uncollected():
    """Nothing collects garbage, and no record of pytest's holds a traceback."""
    logging.disable()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("retries", [0, 3], ids=["comes back", "last attempt"])
@pytest.mark.parametrize(
    "end", ["raises", "raises from another", "retries for an error", "retries", "rejects"]
)
def test_the_variables_of_a_failed_run_are_free_without_a_garbage_collection(app, end, retries):
    task = app.task(ends, shared=False, bind=True)
    task.variables = []
    assert trace(task, (end,), retries=retries).info is not None
    assert [variable() for variable in task.variables] == [None]


@pytest.mark.usefixtures("uncollected", "down")
def test_the_variables_of_a_run_that_celery_could_not_record_are_free(app):
    task = app.task(ends, shared=False, bind=True)
    task.variables = []
    assert trace(task, ("raises",)).info.state == states.RETRY
    assert [variable() for variable in task.variables] == [None]


@pytest.fixture
def lease(monkeypatch, leases):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    return leases.take(SYSTEM_CLOCK.monotonic() + 60, pytest.fail)


@pytest.fixture
def signs(lease):
    """The last sign of life, as it was when the task noted it."""
    return []


@pytest.fixture
def make(app, lease, signs):
    def make(error=None, **options):
        def on_success(self, *_):
            signs.append(lease.last_sign)

        def before_start(self, *_):
            signs.append(lease.last_sign)

        @app.task(shared=False, on_success=on_success, before_start=before_start, **options)
        def noting():
            signs.append(lease.last_sign)
            if error:
                raise error

        return noting

    return make


def test_it_is_watched_until_its_code_has_ended(make, lease, signs):
    began = SYSTEM_CLOCK.monotonic()
    trace(make(inactivity_timeout=30), visibility_lease=lease.key)
    before, within, after = signs
    assert began <= before <= within <= SYSTEM_CLOCK.monotonic()
    assert after == UNWATCHED


def test_a_failure_ends_the_watch_too(make, lease):
    trace(make(ValueError("no"), inactivity_timeout=30), visibility_lease=lease.key)
    assert lease.last_sign == UNWATCHED


def test_a_task_that_declares_nothing_is_not_watched(make, lease, signs):
    trace(make(), visibility_lease=lease.key)
    assert signs == [UNWATCHED] * 3


def test_without_a_lease_nothing_happens(make):
    assert trace(make(inactivity_timeout=30)).info is None


def test_a_run_that_could_not_be_ended_fails_at_its_next_sign_and_comes_back_whatever_it_retries(app, lease):
    @app.task(
        shared=False,
        bind=True,
        inactivity_timeout="30",
        autoretry_for=(OSError,),
        error_visibility_timeout=60,
    )
    def silent(self):
        lease.last_sign = INACTIVE  # as the main process says
        self.visibility.alive()

    retry = trace(silent, visibility_lease=lease.key).info.retval
    assert isinstance(retry, VisibilityRetry)
    assert isinstance(retry.exc, InactivityError)
    assert "no sign of life for 30 s" in str(retry)
