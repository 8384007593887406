"""A task's settings, its methods as classes and annotations give them, and its calls without SQS."""

import inspect
import types
from unittest import mock

import django
import pytest
from celery import states
from celery.contrib.django.task import DjangoTask
from celery.exceptions import (
    Retry,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLostError,
)
from django.conf import settings
from django.db import connections, transaction
from support.factories import outcome, trace

from celery_sqs_visibility import ExclusiveKeyError, VisibilityTask
from celery_sqs_visibility.task.context import delivered_request
from celery_sqs_visibility.task.retries import VisibilityRetry

RAISED = ValueError("no")


def failing():
    raise RAISED


def test_celery_deletes_nothing_by_itself_and_rejects_no_lost_worker(app):
    task = app.task(failing, shared=False, acks_on_failure_or_timeout=False, reject_on_worker_lost=True)
    assert (task.acks_on_failure_or_timeout, task.reject_on_worker_lost) == (True, False)


class TestOffSqs:
    def test_called_directly_or_by_a_worker_of_another_broker_it_fails_plainly(self, app):
        task = app.task(failing, shared=False)
        with pytest.raises(ValueError, match="no"):
            task()
        assert outcome(task, sqs=None) == (states.FAILURE, RAISED)

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
    state, retry = outcome(task, **request)
    return (state, type(retry)) == (states.RETRY, VisibilityRetry)


@pytest.mark.parametrize("name", ["*", "failing"])
def test_on_failure_of_annotations_is_called_and_its_error_decides_nothing(app, name):
    called = []

    def on_failure(task, exc, *_):
        called.append((task.name, str(exc)))
        raise KeyError("a handler's own")

    app.conf.task_annotations = {name: {"on_failure": on_failure}}
    task = app.task(shared=False, name="failing", max_retries=0)(failing)
    state, error = outcome(task)
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
    assert outcome(task, retries=1)[0] == states.FAILURE


def test_a_task_that_is_exclusive_by_annotation_fails_without_a_key(app):
    app.conf.task_annotations = {"exclusive": {"exclusive": True, "max_retries": 0}}
    task = app.task(shared=False, name="exclusive")(failing)
    ownership = {"key": "", "owner": "", "error": "no key can be made"}
    state, error = outcome(task, visibility_exclusive=ownership)
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
    assert outcome(below) == (states.SUCCESS, None)


def test_of_a_registered_class_with_autoretry_the_delay_is_ours(app):
    class Retried(VisibilityTask):
        name = "retried"
        autoretry_for = (ValueError,)
        retry_kwargs = types.MappingProxyType({"max_retries": 1})
        error_visibility_timeout = 7

        def run(self):
            failing()

    task = app.register_task(Retried())
    state, retry = outcome(task)
    assert (state, type(retry), retry.delay) == (states.RETRY, VisibilityRetry, 7)
    assert outcome(task, retries=1)[0] == states.FAILURE


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
