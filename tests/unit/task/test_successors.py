"""A message is not deleted for a successor that `apply_async` of a user's base class did not publish."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from celery import group, states
from celery.exceptions import Ignore, Retry
from celery.signals import after_task_publish
from support.factories import sqs_facts, trace

from celery_sqs_visibility import PublishError, VisibilityTask
from celery_sqs_visibility.task.successors import Continuation
from celery_sqs_visibility.task.tracing import VisibilityRetry

TROUBLE = ValueError("no")
ASKED_FOR = {"args": (1,), "countdown": 7}

WAYS = {
    "other arguments": lambda task: task.retry(args=(1,), countdown=7),
    "other keyword arguments": lambda task: task.retry(kwargs={"x": 1}, countdown=7),
    "another queue": lambda task: task.retry(queue="other", countdown=7),
    "a higher limit": lambda task: task.retry(max_retries=9, countdown=7),
    "continue_later()": lambda task: task.visibility.continue_later(x=1),
    "replace()": lambda task: task.replace(task.s()),
    "replace() by a chain": lambda task: task.replace(task.s() | task.s()),
    "replace() by a group": lambda task: task.replace(group(task.s(), task.s())),
}


class Singleton(VisibilityTask):
    """As celery-singleton's: another task of these arguments waits already."""

    def apply_async(self, *_args, **_options):
        return self.app.AsyncResult("the-one-that-waits")


class AfterCommit(VisibilityTask):
    """Publishes when a transaction is committed, and never if it is rolled back."""

    def __init__(self):
        self.waiting = []

    def apply_async(self, *args, **options):
        self.waiting.append(lambda: super(AfterCommit, self).apply_async(*args, **options))

    def commit(self):
        while self.waiting:
            self.waiting.pop(0)()


class ElsewherePublishing(VisibilityTask):
    """Publishes in another thread, as from a coroutine."""

    def apply_async(self, *args, **options):
        with ThreadPoolExecutor() as threads:
            return threads.submit(super().apply_async, *args, **options).result()


class Renaming(VisibilityTask):
    """Publishes under an id of its own."""

    def apply_async(self, *args, **options):
        return super().apply_async(*args, **{**options, "task_id": "another"})


@pytest.fixture(autouse=True)
def left():
    """The ids of the tasks whose messages have left this process."""
    ids = []

    def note(headers, **_):
        ids.append(headers["id"])

    after_task_publish.connect(note)
    yield ids
    after_task_publish.disconnect(note)


@pytest.fixture
def make(app):
    def make(base, way, **options):
        def ending(self, *_args, x=0):
            way(self)

        options = {"max_retries": 1, "error_visibility_timeout": 60, **options}
        return app.task(ending, base=base, bind=True, shared=False, name="ending", **options)

    return make


def end(task, **request):
    info = trace(task, **request).info
    return (info.state, info.retval)


@pytest.mark.parametrize("base", [Singleton, AfterCommit])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_whose_successor_was_not_published_comes_back_by_its_own_message(make, left, base, way):
    state, retry = end(make(base, way))
    assert (left, state, type(retry)) == ([], states.RETRY, VisibilityRetry)
    assert retry.delay in (7, 60)


@pytest.mark.parametrize("base", [VisibilityTask, ElsewherePublishing])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("root", ["root", None])
@pytest.mark.parametrize("protocol", [1, 2])
def test_one_whose_successor_has_left_is_over(app, make, left, base, way, root, protocol):
    app.conf.task_protocol = protocol
    left.clear()
    state, ended = end(make(base, way), root_id=root)
    assert (state, type(ended)) in [
        (states.RETRY, Retry), (states.RETRY, Continuation), (states.IGNORED, Ignore),
    ]  # fmt: skip


def test_a_message_of_another_task_is_none_of_it(make, left):
    state, retry = end(make(Renaming, WAYS["other arguments"]), id="a")
    assert (left, state, type(retry)) == (["another"], states.RETRY, VisibilityRetry)


def test_a_successor_that_leaves_before_the_run_is_over_has_left(make, left):
    def retry_and_commit(task):
        retry = task.retry(throw=False, **ASKED_FOR)
        task.commit()
        raise retry

    state, ended = end(make(AfterCommit, retry_and_commit), id="a")
    assert (left, state, type(ended)) == (["a"], states.RETRY, Retry)


def test_so_it_is_with_the_retry_of_an_error_by_retry_kwargs(make, left):
    def fail(_task):
        raise TROUBLE

    state, retry = end(make(Singleton, fail, retry_kwargs={"queue": "other", "countdown": 7}))
    assert (left, state, type(retry), retry.exc, retry.delay) == (
        [], states.RETRY, VisibilityRetry, TROUBLE, 7,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["other arguments", "continue_later()"])
@pytest.mark.parametrize(
    "request_",
    [{"retries": 3}, {"sqs": sqs_facts(receive_count=2, max_receive_count=2)}],
    ids=["no attempts left", "no receives left"],
)
def test_at_the_last_attempt_it_has_failed(make, way, request_):
    state, error = end(make(Singleton, WAYS[way], max_retries=3), **request_)
    assert state == states.FAILURE
    if way == "continue_later()" or "sqs" in request_:
        assert isinstance(error, PublishError)
        assert "returned without having published" in str(error)


def test_what_the_task_makes_of_the_retry_itself_stands(make):
    def give_up(task):
        with suppress(Retry):
            task.retry(**ASKED_FOR)

    assert trace(make(Singleton, give_up)).info is None


def test_it_is_said_once_a_task_with_what_to_do(make, caplog):
    task = make(Singleton, WAYS["other arguments"])
    for _ in range(2):
        trace(task)
    told = [each.getMessage() for each in caplog.records if "the message of the run" in each.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("apply_async of task ending returned without having published")
    assert "self.request.id" in told[0]


def test_of_an_app_that_runs_all_tasks_eagerly_nothing_is_awaited(app, make):
    app.conf.task_always_eager = True
    assert type(end(make(Singleton, WAYS["other arguments"]))[1]) is Retry
