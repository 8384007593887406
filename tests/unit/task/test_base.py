"""How runs of a task end, by its settings and by what it calls."""

from __future__ import annotations

import inspect
import types
from datetime import UTC, datetime, timedelta
from unittest import mock

import django
import pytest
from celery import states
from celery.contrib.django.task import DjangoTask
from celery.exceptions import (
    Ignore,
    ImproperlyConfigured,
    MaxRetriesExceededError,
    QueueNotFound,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLostError,
)
from django.conf import settings
from django.db import connections, transaction
from kombu.exceptions import OperationalError
from support.factories import sqs_facts, trace

from celery_sqs_visibility import ExclusiveKeyError, QueueDoesNotExistError, VisibilityTask
from celery_sqs_visibility.task.context import LIMIT_HEADER, delivered_request
from celery_sqs_visibility.task.retries import VisibilityRetry

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
            ({"when_exhausted": "kept"}, "expected when_exhausted to be 'delete' or 'keep', got 'kept'"),
            ({"when_lost": "end"}, "expected when_lost to be 'continue' or 'terminate', got 'end'"),
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
    def test_called_directly_or_by_a_worker_of_another_broker_it_fails_plainly(self, app):
        task = app.task(failing, shared=False)
        with pytest.raises(ValueError, match="no"):
            task()
        assert end(task, sqs=None) == (states.FAILURE, RAISED)

    @pytest.mark.parametrize(
        ("options", "retries"),
        [
            ({}, [0]),
            ({"autoretry_for": (ValueError,), "max_retries": 2, "default_retry_delay": 0}, [0, 1, 2]),
        ],
    )
    def test_eagerly_it_is_a_plain_task_whose_retries_are_celerys(self, app, options, retries):
        runs = []

        @app.task(shared=False, bind=True, error_visibility_timeout=60, retry_backoff=False, **options)
        def eager(self):
            runs.append((self.request.sqs, self.request.retries))
            raise RAISED

        assert eager.apply().state == "FAILURE"
        assert runs == [(None, number) for number in retries]

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
        assert end(app.task(failing, shared=False, **options), **request_) == (states.FAILURE, RAISED)

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
        end(make_retrying(app, given), properties={"MessageGroupId": "g"})
        [(_, _, options)] = published
        assert options["MessageGroupId"] == "g"

    def test_a_poll_for_a_chord_is_published_since_it_is_no_failure(self, app, published):
        unlock = make_retrying(app, {"countdown": 1}, name="celery.chord_unlock", max_retries=None)
        assert type(end(unlock)[1]) is Retry
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
        state, raised = end(make_retrying(app, given), retries=retries)
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
        state, retry = end(task, **request_)
        assert (state, len(published)) == ends
        if ends == PUBLISHED:
            assert published[0][2]["headers"] == {LIMIT_HEADER: 5}
        if ends == HIDDEN:
            assert retry.delay == 7

    def test_one_run_with_it_leaves_nothing_to_the_next(self, task, published):
        end(task)
        assert "override_max_retries" not in vars(task)
        assert end(task, retries=5, visibility_max_retries=5)[0] == states.FAILURE


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
        state, retry = end(task, retries=0)
        assert (state, type(retry), retry.exc) == (states.RETRY, Retry, exc)
        assert [(sent["countdown"], sent["retries"]) for _, _, sent in published] == [(24 * HOUR, 1)]

    @pytest.mark.parametrize(("explicit", "count"), [(True, 1), (False, 0)], ids=["self.retry()", "raised"])
    def test_a_message_of_a_fifo_queue_keeps_its_place_unless_the_task_retries(
        self, app, published, explicit, count
    ):
        def daily(self):
            if explicit:
                self.retry()
            raise RAISED

        task = app.task(daily, bind=True, shared=False, default_retry_delay=24 * HOUR)
        assert end(task, properties=IN_FIFO_QUEUE)[0] == states.RETRY
        assert len(published) == count

    def test_at_the_last_attempt_nothing_is_published(self, app, published):
        task = app.task(failing, shared=False, default_retry_delay=24 * HOUR)
        assert end(task, retries=3) == (states.FAILURE, RAISED)
        assert not published


class NeedsArguments(Exception):
    def __init__(self, one):
        super().__init__(one)


class TestRetryOfAClass:
    def test_the_last_failure_is_an_instance_of_the_class(self, app):
        task = make_retrying(app, {"exc": ValueError, "countdown": 1}, max_retries=1)
        assert hidden_for(task) == 1
        state, error = end(task, retries=1)
        assert (state, type(error)) == (states.FAILURE, ValueError)

    def test_a_class_that_takes_arguments_is_told_as_attempts_that_are_used_up(self, app):
        task = make_retrying(app, {"exc": NeedsArguments, "countdown": 1}, max_retries=0)
        state, error = end(task)
        assert (state, type(error)) == (states.FAILURE, MaxRetriesExceededError)


class TestRetryToAMissingQueue:
    @pytest.fixture
    def missing(self, app, monkeypatch):
        def send_task(*_, **__):
            raise QueueDoesNotExistError("no such queue")

        monkeypatch.setattr(app, "send_task", send_task)

    def test_a_queue_that_celery_does_not_know_fails_the_task(self, app):
        app.conf.task_create_missing_queues = False
        state, error = end(make_retrying(app, {"queue": "nosuch"}))
        assert (state, type(error)) == (states.FAILURE, QueueNotFound)

    @pytest.mark.usefixtures("missing")
    def test_a_queue_that_sqs_does_not_have_fails_the_task(self, app):
        state, error = end(make_retrying(app, {"queue": "nosuch"}))
        assert (state, type(error)) == (states.FAILURE, QueueDoesNotExistError)

    @pytest.mark.usefixtures("missing")
    def test_its_own_queue_that_is_missing_makes_the_message_come_back(self, app):
        assert hidden_for(make_retrying(app, {"args": (1,), "countdown": 5})) == 5


def test_a_task_that_no_app_has_bound_runs_for_no_message():
    class Unbound(VisibilityTask):
        name = "unbound"

    assert delivered_request(Unbound()) is None


BUILT_IN = [
    "celery.accumulate",
    "celery.backend_cleanup",
    "celery.chain",
    "celery.chord",
    "celery.chord_unlock",
    "celery.chunks",
    "celery.group",
    "celery.map",
    "celery.starmap",
]


def failing_itself(self):
    failing()


def add(one, other):
    return one + other


def add_itself(self, one, other):
    return one + other


def comes_back(task, **request):
    state, retry = end(task, **request)
    return (state, type(retry)) == (states.RETRY, VisibilityRetry)


@pytest.mark.parametrize("name", ["*", "failing"])
def test_on_failure_of_annotations_is_called_and_its_error_decides_nothing(app, name):
    called = []

    def on_failure(task, exc, *_):
        called.append((task.name, str(exc)))
        raise KeyError("a handler's own")

    app.conf.task_annotations = {name: {"on_failure": on_failure}}
    task = app.task(shared=False, name="failing", max_retries=0)(failing)
    state, error = end(task)
    assert (state, str(error)) == (states.FAILURE, "no")
    assert called == [("failing", "no")]


def test_an_annotation_around_run_is_run_and_its_failures_come_back(app):
    def around(run):
        def inside(self):
            called.append("around")
            return run(self)

        return inside

    called = []
    app.conf.task_annotations = {"failing": {"@run": around}}
    task = app.task(shared=False, name="failing", bind=True)(failing_itself)
    assert comes_back(task)
    assert called == ["around"]


def test_retry_kwargs_of_annotations_count(app):
    app.conf.task_annotations = {"failing": {"retry_kwargs": {"max_retries": 1}}}
    task = app.task(shared=False, name="failing")(failing)
    assert comes_back(task, retries=0)
    assert end(task, retries=1)[0] == states.FAILURE


def test_a_task_that_is_exclusive_by_annotation_fails_without_a_key(app):
    app.conf.task_annotations = {"exclusive": {"exclusive": True, "max_retries": 0}}
    task = app.task(shared=False, name="exclusive")(failing)
    ownership = {"key": "", "owner": "", "error": "no key can be made"}
    state, error = end(task, visibility_exclusive=ownership)
    assert (state, type(error), str(error)) == (states.FAILURE, ExclusiveKeyError, "no key can be made")


@pytest.mark.parametrize(("body", "bind"), [(add, False), (add_itself, True)])
def test_run_can_be_patched_in_the_class(app, body, bind):
    app.task(shared=False, name="adding", bind=bind)(body)
    task = app.tasks["adding"]
    assert task(1, 2) == 3
    with mock.patch.object(type(task), "run", return_value="patched"):
        assert task(1, 2) == task.apply((1, 2)).get() == "patched"
    assert task(1, 2) == 3
    assert hasattr(task.run, "__func__") == bind


def test_a_subclass_that_calls_the_run_above_it_handles_its_errors(app):
    class Above(VisibilityTask):
        name = "above"

        def run(self):
            failing()

    class Below(Above):
        name = "below"

        def run(self):
            try:
                super().run()
            except ValueError:
                return "handled"

    above, below = app.register_task(Above()), app.register_task(Below())
    assert comes_back(above)
    assert end(below) == (states.SUCCESS, None)


def test_of_a_registered_class_with_autoretry_the_delay_is_ours(app):
    class Retried(VisibilityTask):
        name = "retried"
        autoretry_for = (ValueError,)
        retry_kwargs = types.MappingProxyType({"max_retries": 1})
        error_visibility_timeout = 7

        def run(self):
            failing()

    task = app.register_task(Retried())
    state, retry = end(task)
    assert (state, type(retry), retry.delay) == (states.RETRY, VisibilityRetry, 7)
    assert end(task, retries=1)[0] == states.FAILURE


def test_a_class_that_is_bound_again_is_wrapped_once(app):
    task = app.task(shared=False, name="failing")(failing)
    task.bind(app)
    before = task.run
    app.finalize()
    task.bind(app)
    assert task.run is before


@pytest.mark.parametrize("name", BUILT_IN)
def test_celerys_own_tasks_fail_as_celerys_do_but_for_a_lost_child(app, name):
    task = app.tasks[name]
    assert isinstance(task, VisibilityTask)
    assert not any(map(task.comes_back, (ValueError(), SoftTimeLimitExceeded(), TimeLimitExceeded())))
    assert task.comes_back(WorkerLostError())


def test_a_map_runs_each_item_as_often_as_celerys(app):
    items = []

    @app.task(shared=False, max_retries=0)
    def picky(item):
        items.append(item)
        if item == 2:
            raise ValueError(item)

    signature = picky.map([1, 2, 3])
    info = trace(app.tasks["celery.map"], (dict(signature["kwargs"]["task"]), [1, 2, 3])).info
    assert (info.state, items) == (states.FAILURE, [1, 2])


# At once: settings that are not configured raise at whoever looks at them, as pytest-celery does.
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})


@pytest.fixture(scope="module")
def database():
    django.setup()
    yield
    connections.close_all()


@pytest.mark.parametrize("method", ["delay_on_commit", "apply_async_on_commit"])
def test_both_methods_are_those_of_celerys_class(method):
    ours, theirs = (inspect.getsource(getattr(cls, method)) for cls in (VisibilityTask, DjangoTask))
    assert method.removesuffix("_on_commit") in ours
    assert "transaction.on_commit(functools.partial(self." in theirs


@pytest.mark.parametrize(("commits", "published"), [(True, ["delay", "apply_async"]), (False, [])])
def test_a_task_is_published_only_if_the_transaction_commits(database, commits, published):
    calls = []

    class Recorded(VisibilityTask):
        def delay(self, *args):
            calls.append("delay")

        def apply_async(self, **options):
            calls.append("apply_async")

        def run(self): ...

    task = Recorded()
    with transaction.atomic():
        task.delay_on_commit("a")
        task.apply_async_on_commit(countdown=1)
        assert not calls
        transaction.set_rollback(not commits)
    assert calls == published
