"""Methods of a task that others replace: Celery's `task_annotations`, `unittest.mock`, registered classes."""

from __future__ import annotations

import types
from unittest import mock

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from support.factories import trace

from celery_sqs_visibility import ExclusiveKeyError, VisibilityTask
from celery_sqs_visibility.task.tracing import VisibilityRetry

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


def failing():
    raise ValueError("no")


def failing_itself(self):
    failing()


def add(one, other):
    return one + other


def add_itself(self, one, other):
    return one + other


def end(task, **request):
    info = trace(task, **request).info
    return (info.state, info.retval) if info else (states.SUCCESS, None)


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
