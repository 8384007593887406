"""Tasks that end in every way there is; `tests/support/ends.py` says what becomes of their messages."""

import sys
import threading
import time
from functools import partial
from pathlib import Path

from celery import Task, signals
from celery.exceptions import Ignore, Reject
from support.app import make_app, noting_of
from support.diary import note
from support.runs import Unpicklable, kill_self

from celery_sqs_visibility import VisibilityTask


class Ending(VisibilityTask):
    """Two attempts, a second apart."""

    max_retries = 1
    error_visibility_timeout = 1


app = make_app("ends", task_cls=Ending)


@signals.task_failure.connect(weak=False)
def on_failure(task_id=None, **_):
    note("task_failure", id=task_id)


@signals.task_retry.connect(weak=False)
def on_retry(request=None, **_):
    note("task_retry", id=request.id)


class Trouble(Exception):
    """What the tasks fail with."""


def begins(task, *_, **__):
    note("run", id=task.request.id, retries=task.request.retries, key=task.name.partition(".")[2])


noting = noting_of(app, begins)
noting_stock = partial(noting, base=Task, acks_late=True)


@app.task
def errback(request, exc, traceback):
    note("errback", id=request.id)


@noting
def returning(self, **_):
    return "done"


@noting
def failing(self, times=1000, **_):
    if self.request.retries < times:
        raise Trouble


@noting(dont_autoretry_for=(Trouble,))
def excluded(self, **_):
    raise Trouble


class WithFailingHandler(Ending):
    def on_failure(self, *_):
        raise ValueError("the handler's own")


class WithRaisingHandlers(Ending):
    """As a mixin that measures, and takes `run` to have set its `start`, in this process and run."""

    def on_retry(self, exc, *_):
        note("on_retry", id=self.request.id, exc=type(exc).__name__)
        raise AttributeError("start")

    def on_failure(self, exc, *_):
        note("on_failure", id=self.request.id, exc=type(exc).__name__)
        raise AttributeError("start")

    def after_return(self, status, *_):
        note("after_return", id=self.request.id, status=status)
        raise AttributeError("start")


@noting(base=WithRaisingHandlers, max_retries=2)
def measured(self, killed_at=None, **_):
    if self.request.retries == killed_at:
        kill_self()
    raise Trouble


@noting(base=WithFailingHandler, dont_autoretry_for=(Trouble,))
def failing_twice(self, **_):
    raise Trouble


@noting(autoretry_for=(OSError,))
def narrowed(self, included=False, **_):
    raise OSError if included else Trouble


@noting(autoretry_for=(OSError,))
def narrowed_and_returning(self, **_):
    """Nothing."""


@noting
def retrying(self, times=1000, **changes):
    if self.request.retries < times:
        raise self.retry(countdown=1, **{k: v for k, v in changes.items() if k != "refused"})


@noting(autoretry_for=(OSError,))
def narrowed_and_retrying(self, times=1000, **_):
    if self.request.retries < times:
        raise self.retry(countdown=1)


@noting
def retrying_with_arguments(self, again=True, **_):
    if again:
        raise self.retry(countdown=0, kwargs={"again": False})
    time.sleep(0.5)  # see `continuing`


class PublishingNothing(Ending):
    """Its base class takes each task for one that waits already."""

    def apply_async(self, *_, **__):
        return self.app.AsyncResult("the-one-that-waits")


@noting(base=PublishingNothing)
def retrying_unpublished(self, **_):
    raise self.retry(countdown=1, kwargs={"again": False})


@noting(base=PublishingNothing)
def continuing_unpublished(self, **_):
    self.visibility.continue_later(again=False)


@noting
def continuing(self, again=True, **_):
    if again:
        self.visibility.continue_later(again=False)
    time.sleep(0.5)  # the first part stores RETRY after it has published this one, as `self.retry()` does


@noting(inactivity_timeout=1)
def silent(self, **_):
    time.sleep(4)
    self.visibility.alive()  # where the pool cannot end the run


@noting
def replacing(self, **_):
    raise self.replace(returning.s())


@noting
def ignoring(self, **_):
    raise Ignore


@noting
def rejecting(self, **_):
    raise Reject(Trouble(), requeue=False)


@noting
def releasing(self, **_):
    if self.request.retries < 1:
        self.visibility.release()


@noting
def exiting(self, **_):
    sys.exit(3)


@noting
def killed(self, **_):
    kill_self()


@noting(time_limit=3)
def limited(self, **_):
    time.sleep(60)


@noting
def raising_what_cannot_be_pickled(self, **_):
    raise Unpicklable(1, 2)


@noting
def returning_what_cannot_be_stored(self, **_):
    return threading.Lock()


@app.task(bind=True)
def calling_itself(self, nested=False, **_):
    if nested:
        raise Trouble
    begins(self)
    try:
        self.run(nested=True)
    except Trouble:
        return "its own exception"


@noting_stock
def stock_retrying(self, queue=None, **_):
    raise self.retry(countdown=0, queue=queue)


@noting_stock(max_retries=1)
def stock_retrying_with_what_cannot_be_sent(self, **_):
    raise self.retry(countdown=0, kwargs={"lock": threading.Lock()})


@noting_stock
def stock_rejecting(self, **_):
    raise Reject(Trouble(), requeue=False)


@noting(base=VisibilityTask)
def extending_and_failing(self, times=1, **_):
    if self.request.retries < times:
        self.visibility.extend(600)
        note("failing", id=self.request.id)
        raise Trouble


@noting
def adding(self, numbers, **_):
    """A chord's body."""
    note("sum", id=self.request.root_id, sum=sum(numbers))


@noting
def number(self, value, seconds=0, **_):
    time.sleep(seconds if self.request.retries < 1 else 0)
    return value


@noting
def one(self, path, **_):
    """1, and 1.0 once that file is there: the same number, and another text."""
    return 1.0 if Path(path).exists() else 1


@noting
def number_when(self, value, path, **_):
    """As `number`, once that file is there."""
    while not Path(path).exists():
        time.sleep(0.05)
    return value


@noting
def retrying_and_killed(self, limit, killed_at, **_):
    if self.request.retries == killed_at:
        kill_self()
    raise self.retry(countdown=1, max_retries=limit)


@noting
def retrying_anew_and_killed(self, limit, killed_at, **_):
    if self.request.retries == killed_at:
        kill_self()
    raise self.retry(countdown=0, max_retries=limit, kwargs={"limit": limit, "killed_at": killed_at})


@noting
def following(self, *_, **__):
    """A step of a chain, or a callback."""
