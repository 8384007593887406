"""How runs of a task end, by its settings and by what it calls."""

from datetime import UTC, datetime, timedelta

import pytest
from celery import states
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    QueueNotFound,
    Reject,
    Retry,
)
from kombu.exceptions import OperationalError
from support.factories import hidden_for, outcome, sqs_facts

from celery_sqs_visibility import QueueDoesNotExistError, VisibilityTask
from celery_sqs_visibility.task.context import LIMIT_HEADER

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


class TestFailures:
    """An exception that nobody handles."""

    @pytest.mark.parametrize(
        ("options", "seconds"),
        [
            ({}, None),
            ({"error_visibility_timeout": 60}, 60),
            ({"error_visibility_timeout": 60, "retry_kwargs": {"countdown": 5}}, 5),
        ],
    )
    def test_one_comes_back_after_its_delay(self, app, options, seconds):
        assert hidden_for(app.task(failing, shared=False, **options)) == seconds

    @pytest.mark.parametrize(
        ("options", "request_"),
        [
            ({"max_retries": 2}, {"retries": 2}),
            ({"max_retries": None}, {"sqs": sqs_facts(receive_count=5, max_receive_count=5)}),
            ({"retry_kwargs": {"max_retries": 1}}, {"retries": 1}),
            ({"dont_autoretry_for": (ValueError,)}, {}),
            ({"autoretry_for": (OSError,)}, {}),
        ],
    )
    def test_the_last_or_one_not_to_be_retried_is_celerys_plain_failure(self, app, options, request_):
        assert outcome(app.task(failing, shared=False, **options), **request_) == (states.FAILURE, RAISED)

    @pytest.mark.parametrize(
        ("options", "request_"),
        [
            ({"max_retries": 2}, {"retries": 2}),
            ({"max_retries": None}, {"sqs": sqs_facts(receive_count=5, max_receive_count=5)}),
            ({"dont_autoretry_for": (ValueError,)}, {}),
        ],
    )
    def test_a_try_of_its_brake_comes_back_even_then(self, app, options, request_):
        task = app.task(failing, shared=False, brake_on=(ValueError,), **options)
        state, retry = outcome(task, visibility_try=True, **request_)
        assert (state, retry.exc) == (states.RETRY, RAISED)

    @pytest.mark.parametrize("options", [{"brake_on": (OSError,)}, {}])
    def test_a_try_that_fails_otherwise_is_an_attempt(self, app, options):
        task = app.task(failing, shared=False, max_retries=2, **options)
        assert outcome(task, visibility_try=True, retries=2) == (states.FAILURE, RAISED)

    def test_other_retry_kwargs_take_a_message_as_in_celery(self, app, published):
        task = app.task(failing, shared=False, autoretry_for=(ValueError,), retry_kwargs={"queue": "other"})
        state, retry = outcome(task)
        assert (state, type(retry)) == (states.RETRY, Retry)
        assert published[0][3]["queue"] == "other"

    @pytest.mark.parametrize("part", ["before_start", "__call__"])
    def test_other_parts_of_the_tasks_own_code_may_fail_too(self, app, part):
        def fail(self, *_args):
            raise RAISED

        base = type("Base", (VisibilityTask,), {part: fail, "error_visibility_timeout": 60})
        task = app.task(failing, shared=False, base=base)
        assert hidden_for(task) == 60
        assert outcome(task, retries=3) == (states.FAILURE, RAISED)

    def test_within_the_tasks_own_code_its_exceptions_are_its_own(self, app):
        @app.task(shared=False, bind=True)
        def careful(self, again=True):
            if again:
                with pytest.raises(ValueError, match="no"):
                    self.run(again=False)
                return
            raise RAISED

        assert outcome(careful) == (states.SUCCESS, None)

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

        assert outcome(predicate) == (state, exc)


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

    @pytest.mark.parametrize("zone", [UTC, None], ids=["aware", "naive"])
    def test_an_eta_is_a_delay(self, app, zone):
        eta = datetime.now(UTC) + timedelta(seconds=60)
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
    def test_it_publishes_what_sqs_cannot_express_and_to_its_message_group(self, app, published, given):
        outcome(make_retrying(app, given), properties={"MessageGroupId": "g"})
        [(*_, options)] = published
        assert options["MessageGroupId"] == "g"

    def test_a_poll_for_a_chord_is_published_since_it_is_no_failure(self, app, published):
        unlock = make_retrying(app, {"countdown": 1}, name="celery.chord_unlock", max_retries=None)
        assert type(outcome(unlock)[1]) is Retry
        assert len(published) == 1

    @pytest.mark.parametrize(
        ("given", "retries", "error"),
        [
            ({}, 3, MaxRetriesExceededError),
            ({"args": (1,)}, 3, MaxRetriesExceededError),
            ({"max_retries": 2}, 2, MaxRetriesExceededError),
            ({"max_retries": 2, "exc": RAISED}, 2, ValueError),
        ],
    )
    def test_at_the_last_attempt_it_fails_and_autoretry_does_not_retry_that(
        self, app, published, given, retries, error
    ):
        state, raised = outcome(make_retrying(app, given), retries=retries)
        assert (state, type(raised)) == (states.FAILURE, error)
        assert not published

    @pytest.mark.parametrize("reason", [OperationalError("down"), RuntimeError("unknown")])
    @pytest.mark.parametrize(
        ("given", "own_limit"), [({"args": (1,)}, 3), ({"max_retries": 5}, 1)], ids=["successor", "limit"]
    )
    def test_the_message_comes_back_where_its_successor_cannot_be_published(
        self, app, monkeypatch, reason, given, own_limit
    ):
        def send_task(*_args, **_options):
            raise reason

        monkeypatch.setattr(app, "send_task", send_task)
        assert hidden_for(make_retrying(app, {**given, "countdown": 7}, max_retries=own_limit)) == 7


PUBLISHED, HIDDEN, FAILED = (states.RETRY, 1), (states.RETRY, 0), (states.FAILURE, 0)
#: A predefined queue, say, whose name does not tell.
IN_FIFO_QUEUE = {"delivery_info": {"sqs_queue": "https://sqs.test/q.fifo"}}
LIMITS_TOLD = {
    "before the known last": ({}, PUBLISHED),
    "beyond it": ({"retries": 2}, PUBLISHED),
    "told": ({"retries": 2, "visibility_max_retries": 5}, HIDDEN),
    "told less": ({"retries": 4, "visibility_max_retries": 4}, PUBLISHED),
    "told less, but not there yet": ({"retries": 2, "visibility_max_retries": 4}, HIDDEN),
    "where the message would lose its place": (
        {"sqs": sqs_facts(queue="orders"), "properties": IN_FIFO_QUEUE},
        HIDDEN,
    ),
    "ended before by the redrive policy": ({"sqs": sqs_facts(receive_count=3, max_receive_count=3)}, FAILED),
}


class TestLimitsGivenToRetry:
    """A limit above the task's own, which is one retry here, is told with a message."""

    @pytest.fixture
    def task(self, app):
        return make_retrying(app, {"max_retries": 5, "countdown": 7}, max_retries=1)

    @pytest.mark.parametrize(("request_", "ends"), LIMITS_TOLD.values(), ids=LIMITS_TOLD)
    def test_it_is_published_before_the_last_attempt_that_others_know_of(
        self, task, published, request_, ends
    ):
        state, retry = outcome(task, **request_)
        assert (state, len(published)) == ends
        if ends == PUBLISHED:
            assert published[0][3]["headers"] == {LIMIT_HEADER: 5}
        if ends == HIDDEN:
            assert retry.delay == 7

    def test_one_run_with_it_leaves_nothing_to_the_next(self, task, published):
        outcome(task)
        assert "override_max_retries" not in vars(task)
        assert outcome(task, retries=5, visibility_max_retries=5)[0] == states.FAILURE


class AskingForADay(Exception):
    retry_after = 24 * HOUR


DAILY = {
    "default_retry_delay": ({"default_retry_delay": 24 * HOUR}, RAISED),
    "retry_backoff": (
        {"retry_backoff": 24 * HOUR, "retry_backoff_max": 48 * HOUR, "retry_jitter": False},
        RAISED,
    ),
    "retry_kwargs": ({"retry_kwargs": {"countdown": 24 * HOUR, "max_retries": 5}}, RAISED),
    "retry_after": ({}, AskingForADay()),
}


class TestDelaysBeyond12Hours:
    """The delay is chosen first, then the way to wait: SQS hides no message for a day."""

    @pytest.mark.parametrize(("options", "exc"), DAILY.values(), ids=DAILY)
    @pytest.mark.parametrize("explicit", [True, False], ids=["self.retry()", "raised"])
    def test_the_retry_is_published_whichever_rule_says_so(self, app, published, options, exc, explicit):
        def daily(self):
            if explicit and "retry_kwargs" not in options:
                self.retry(exc=exc)
            raise exc

        task = app.task(daily, bind=True, shared=False, **options)
        state, retry = outcome(task, retries=0)
        assert (state, type(retry), retry.exc) == (states.RETRY, Retry, exc)
        assert [(sent["countdown"], sent["retries"]) for *_, sent in published] == [(24 * HOUR, 1)]

    @pytest.mark.parametrize(("explicit", "count"), [(True, 1), (False, 0)], ids=["self.retry()", "raised"])
    def test_a_message_of_a_fifo_queue_keeps_its_place_unless_the_task_retries(
        self, app, published, explicit, count
    ):
        def daily(self):
            if explicit:
                self.retry()
            raise RAISED

        task = app.task(daily, bind=True, shared=False, default_retry_delay=24 * HOUR)
        assert outcome(task, properties=IN_FIFO_QUEUE)[0] == states.RETRY
        assert len(published) == count


class NeedsArguments(Exception):
    def __init__(self, one):
        super().__init__(one)


class TestRetryOfAClass:
    def test_the_last_failure_is_an_instance_of_the_class(self, app):
        task = make_retrying(app, {"exc": ValueError, "countdown": 1}, max_retries=1)
        assert hidden_for(task) == 1
        state, error = outcome(task, retries=1)
        assert (state, type(error)) == (states.FAILURE, ValueError)

    def test_a_class_that_takes_arguments_is_told_as_attempts_that_are_used_up(self, app):
        task = make_retrying(app, {"exc": NeedsArguments, "countdown": 1}, max_retries=0)
        state, error = outcome(task)
        assert (state, type(error)) == (states.FAILURE, MaxRetriesExceededError)


class TestRetryToAMissingQueue:
    @pytest.fixture
    def missing(self, app, monkeypatch):
        def send_task(*_, **__):
            raise QueueDoesNotExistError("no such queue")

        monkeypatch.setattr(app, "send_task", send_task)

    def test_a_queue_that_celery_does_not_know_fails_the_task(self, app):
        app.conf.task_create_missing_queues = False
        state, error = outcome(make_retrying(app, {"queue": "nosuch"}))
        assert (state, type(error)) == (states.FAILURE, QueueNotFound)

    @pytest.mark.usefixtures("missing")
    def test_a_queue_that_sqs_does_not_have_fails_the_task(self, app):
        state, error = outcome(make_retrying(app, {"queue": "nosuch"}))
        assert (state, type(error)) == (states.FAILURE, QueueDoesNotExistError)

    @pytest.mark.usefixtures("missing")
    def test_its_own_queue_that_is_missing_makes_the_message_come_back(self, app):
        assert hidden_for(make_retrying(app, {"args": (1,), "countdown": 5})) == 5
