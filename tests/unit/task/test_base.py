"""How a run ends: what the child makes of a failure and of `self.retry()`, and what is left to Celery."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery import states
from celery.exceptions import Ignore, ImproperlyConfigured, MaxRetriesExceededError, Reject, Retry
from kombu.exceptions import OperationalError
from support.factories import sqs_facts, trace

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.task.tracing import LIMIT_HEADER, VisibilityRetry

RAISED = ValueError("no")
HOUR = 3600


def failing():
    raise RAISED


def make_retrying(app, retry=None, **options):
    """A task that calls `self.retry()` with these arguments."""

    @app.task(shared=False, bind=True, **options)
    def retrying(self, *_args, **_kwargs):
        raise self.retry(**(retry or {}))

    return retrying


def end(task, **request):
    """How a run of the task ends: its state, and the exception that says so."""
    info = trace(task, **request).info
    return (info.state, info.retval) if info else (states.SUCCESS, None)


def hidden_for(task, **request):
    """Seconds that the message of a run is hidden."""
    state, retry = end(task, **request)
    assert (state, type(retry)) == (states.RETRY, VisibilityRetry)
    return retry.delay


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"acks_late": False}, "acks_late=False"),
            ({"error_visibility_timeout": -1}, "expected error_visibility_timeout to be between 0 and 43200"),
            ({"error_visibility_timeout": []}, "expected error_visibility_timeout to hold at least one"),
            ({"error_visibility_timeout": [1, "2"]}, r"error_visibility_timeout\[1\] to be seconds"),
            ({"error_visibility_timeout": lambda retries: 1}, "to take two arguments"),
            ({"on_exhausted": "kept"}, "expected on_exhausted to be 'delete' or 'keep', got 'kept'"),
            ({"on_lost": "end"}, "expected on_lost to be 'continue' or 'terminate', got 'end'"),
        ],
    )
    def test_bad_ones_are_refused_with_the_tasks_name(self, app, options, sentence):
        app.task(name="wrong", shared=False, **options)(failing)
        with pytest.raises(ImproperlyConfigured, match=f"task 'wrong'.*{sentence}"):
            app.finalize()

    def test_celery_deletes_nothing_by_itself_and_rejects_no_lost_worker(self, app):
        task = app.task(failing, shared=False, acks_on_failure_or_timeout=False, reject_on_worker_lost=True)
        assert (task.acks_on_failure_or_timeout, task.reject_on_worker_lost) == (True, False)


class TestOffSqs:
    def test_called_directly_it_is_a_plain_function(self, app):
        task = app.task(failing, shared=False)
        with pytest.raises(ValueError, match="no"):
            task()

    def test_eagerly_it_is_a_plain_task_and_fails_at_once(self, app):
        runs = []

        @app.task(shared=False, bind=True, error_visibility_timeout=60)
        def eager(self):
            runs.append(self.request.sqs)
            raise RAISED

        assert eager.apply().state == "FAILURE"
        assert runs == [None]

    def test_eagerly_celerys_own_retries_are_celerys(self, app):
        runs = []
        options = {"autoretry_for": (ValueError,), "max_retries": 2, "default_retry_delay": 0}

        @app.task(shared=False, bind=True, retry_backoff=False, **options)
        def eager(self):
            runs.append(self.request.retries)
            raise RAISED

        assert eager.apply().state == "FAILURE"
        assert runs == [0, 1, 2]

    def test_a_worker_of_another_broker_sees_a_plain_failure(self, app):
        assert end(app.task(failing, shared=False), sqs=None) == (states.FAILURE, RAISED)

    def test_a_task_class_can_be_run_without_an_app(self):
        class Adding(VisibilityTask):
            name = "adding"

            def run(self, x, y):
                return x + y

        assert Adding().run(1, 2) == 3


def test_a_visibility_retry_survives_the_way_from_child_to_parent():
    make, arguments = VisibilityRetry(None, ValueError("no"), 2.5).__reduce__()[:2]
    again = make(*arguments)
    assert isinstance(again, Retry)
    assert again.delay == 2.5
    assert str(again) == "Retry in 3 s: ValueError('no')"
    assert str(VisibilityRetry(None, ValueError("no"))) == (
        "Retry when its visibility timeout runs out: ValueError('no')"
    )


class TestFailures:
    """An exception that nobody handles."""

    def test_one_comes_back_after_its_delay(self, app):
        assert hidden_for(app.task(failing, shared=False, error_visibility_timeout=60)) == 60
        assert hidden_for(app.task(failing, shared=False, name="plain")) is None

    @pytest.mark.parametrize(
        ("options", "request_"),
        [
            ({"max_retries": 2}, {"retries": 2}),
            ({"max_retries": None}, {"sqs": sqs_facts(receive_count=5, max_receive_count=5)}),
            ({"retry_kwargs": {"max_retries": 1}}, {"retries": 1}),
            ({"dont_autoretry_for": (ValueError,)}, {}),
            ({"autoretry_for": (OSError,)}, {}),
        ],
        ids=["max_retries", "redrive policy", "retry_kwargs", "excluded", "not named"],
    )
    def test_the_last_or_one_not_to_be_retried_is_celerys_plain_failure(self, app, options, request_):
        assert end(app.task(failing, shared=False, **options), **request_) == (states.FAILURE, RAISED)

    def test_a_countdown_in_retry_kwargs_is_its_delay(self, app):
        task = app.task(failing, shared=False, error_visibility_timeout=60, retry_kwargs={"countdown": 5})
        assert hidden_for(task) == 5

    def test_other_retry_kwargs_take_a_message_as_in_celery(self, app, published):
        task = app.task(failing, shared=False, autoretry_for=(ValueError,), retry_kwargs={"queue": "other"})
        state, retry = end(task)
        assert (state, type(retry)) == (states.RETRY, Retry)
        assert published[0][2]["queue"] == "other"

    @pytest.mark.parametrize("part", ["before_start", "__call__"])
    def test_other_parts_of_the_tasks_own_code_may_fail_too(self, app, part):
        def fail(self, *_args):
            raise RAISED

        base = type("Base", (VisibilityTask,), {part: fail, "error_visibility_timeout": 60})
        task = app.task(failing, shared=False, base=base)
        assert hidden_for(task) == 60
        assert end(task, retries=3) == (states.FAILURE, RAISED)

    def test_within_the_tasks_own_code_its_exceptions_are_its_own(self, app):
        @app.task(shared=False, bind=True)
        def careful(self, again=True):
            if again:
                with pytest.raises(ValueError, match="no"):
                    self.run(again=False)
                return
            raise RAISED

        assert end(careful) == (states.SUCCESS, None)

    @pytest.mark.parametrize(
        ("exc", "state"),
        [
            (Ignore(), states.IGNORED),
            (Reject("no", requeue=False), states.REJECTED),
            (Reject("no", requeue=True), states.REJECTED),
            (Retry(), states.RETRY),
        ],
    )
    def test_celerys_predicates_keep_their_meaning(self, app, exc, state):
        @app.task(shared=False)
        def predicate():
            raise exc

        assert end(predicate) == (state, exc)

    def test_an_error_of_on_failure_decides_nothing_and_is_logged(self, app, caplog):
        def on_failure(self, *_args):
            raise KeyError("of the handler")

        task = app.task(failing, shared=False, max_retries=0, on_failure=on_failure)
        assert end(task) == (states.FAILURE, RAISED)
        assert "on_failure of task" in caplog.text


class TestRetry:
    """`self.retry()`: hiding where SQS can express it, otherwise publishing."""

    @pytest.mark.parametrize(
        ("given", "seconds"),
        [
            ({}, 180),
            ({"countdown": 5}, 5),
            ({"countdown": 0}, 0),
            ({"countdown": 5, "queue": "celery"}, 5),  # its own queue
            ({"countdown": 5, "priority": None}, 5),
            ({"exc": RAISED}, 180),
        ],
    )
    def test_it_hides_the_message(self, app, published, given, seconds):
        assert hidden_for(make_retrying(app, given)) == seconds
        assert not published

    @pytest.mark.parametrize("zone", [timezone.utc, None], ids=["aware", "naive"])
    def test_an_eta_is_a_delay(self, app, zone):
        eta = datetime.now(timezone.utc) + timedelta(seconds=60)
        assert 50 < hidden_for(make_retrying(app, {"eta": eta.replace(tzinfo=zone)})) <= 60

    @pytest.mark.parametrize(
        "given",
        [
            {"args": (1,)},
            {"kwargs": {"x": 1}},
            {"queue": "other"},
            {"priority": 3},
            {"countdown": 13 * HOUR},
            {"countdown": 5, "throw": False},
        ],
        ids=str,
    )
    def test_it_publishes_what_sqs_cannot_express(self, app, published, given):
        end(make_retrying(app, given))
        assert len(published) == 1

    def test_a_poll_for_a_chord_is_published_since_it_is_no_failure(self, app, published):
        @app.task(shared=False, bind=True, name="celery.chord_unlock", max_retries=None)
        def unlock(self):
            raise self.retry(countdown=1)

        assert type(end(unlock)[1]) is Retry
        assert len(published) == 1

    def test_what_is_published_stays_in_its_message_group(self, app, published):
        end(make_retrying(app, {"args": (1,)}), properties={"MessageGroupId": "g"})
        assert published[0][2]["MessageGroupId"] == "g"

    @pytest.mark.parametrize("exc", [None, RAISED])
    def test_at_the_last_attempt_it_fails_with_the_error_given(self, app, exc):
        state, raised = end(make_retrying(app, {"exc": exc, "max_retries": 2}), retries=2)
        assert state == states.FAILURE
        assert raised is exc or isinstance(raised, MaxRetriesExceededError)

    @pytest.mark.parametrize("given", [{}, {"args": (1,)}], ids=["hidden", "published"])
    def test_the_failure_of_a_last_attempt_is_not_retried_by_autoretry(self, app, published, given):
        state, raised = end(make_retrying(app, given), retries=3)
        assert (state, type(raised)) == (states.FAILURE, MaxRetriesExceededError)
        assert not published

    @pytest.mark.parametrize("reason", [OperationalError("down"), RuntimeError("unknown")])
    def test_the_message_comes_back_where_its_successor_cannot_be_published(self, app, monkeypatch, reason):
        def send_task(*_args, **_options):
            raise reason

        monkeypatch.setattr(app, "send_task", send_task)
        assert hidden_for(make_retrying(app, {"args": (1,), "countdown": 7})) == 7


class TestLimitsGivenToRetry:
    """A limit above the task's own, which is one retry here, is told with a message."""

    @pytest.fixture
    def task(self, app):
        return make_retrying(app, {"max_retries": 5, "countdown": 7}, max_retries=1)

    @pytest.mark.parametrize(
        ("retries", "told", "is_published"),
        [(0, None, True), (2, None, True), (2, 5, False), (4, 4, True), (2, 4, False)],
        ids=["before the known last", "beyond it", "told", "told less", "told less, but not there yet"],
    )
    def test_it_is_published_before_the_last_attempt_that_others_know_of(
        self, task, published, retries, told, is_published
    ):
        state, retry = end(task, retries=retries, visibility_max_retries=told)
        assert state == states.RETRY
        if is_published:
            assert published[0][2]["headers"] == {LIMIT_HEADER: 5}
        else:
            assert not published
            assert retry.delay == 7

    def test_not_in_a_fifo_queue_where_the_message_would_lose_its_place(self, task, published):
        url = "https://sqs.test/q.fifo"  # of a predefined queue, say, whose name does not tell
        properties = {"delivery_info": {"sqs_queue": url}}
        assert hidden_for(task, sqs=sqs_facts(queue="orders"), properties=properties) == 7
        assert not published

    def test_not_where_the_redrive_policy_ends_it_before(self, task, published):
        state, _ = end(task, sqs=sqs_facts(receive_count=3, max_receive_count=3))
        assert state == states.FAILURE
        assert not published

    def test_the_message_comes_back_where_it_cannot_be_published(self, app, task, monkeypatch):
        def send_task(*_args, **_options):
            raise OperationalError("down")

        monkeypatch.setattr(app, "send_task", send_task)
        assert hidden_for(task) == 7

    def test_one_run_with_it_leaves_nothing_to_the_next(self, task, published):
        end(task)
        assert "override_max_retries" not in vars(task)
        assert end(task, retries=5, visibility_max_retries=5)[0] == states.FAILURE
