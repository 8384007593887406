"""Tasks that end in every way there is; `tests/support/ends.py` says what becomes of their messages."""

from __future__ import annotations

import sys
import threading
import time

from celery import Task, signals
from celery.exceptions import Ignore, Reject
from support.app import make_app
from support.diary import note
from support.dying import kill_self

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


class Unpicklable(Exception):
    """Fails to travel from the child to the main process."""

    def __init__(self, one, two):
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


def begin(task):
    note("run", id=task.request.id, retries=task.request.retries, key=task.name.partition(".")[2])


@app.task
def errback(request, exc, traceback):
    note("errback", id=request.id)


@app.task(bind=True)
def returning(self, **_):
    begin(self)
    return "done"


@app.task(bind=True)
def failing(self, times=1000, **_):
    begin(self)
    if self.request.retries < times:
        raise Trouble


@app.task(bind=True, dont_autoretry_for=(Trouble,))
def excluded(self, **_):
    begin(self)
    raise Trouble


class WithFailingHandler(Ending):
    def on_failure(self, *_):
        raise ValueError("the handler's own")


@app.task(bind=True, base=WithFailingHandler, dont_autoretry_for=(Trouble,))
def failing_twice(self, **_):
    begin(self)
    raise Trouble


@app.task(bind=True, autoretry_for=(OSError,))
def narrowed(self, included=False, **_):
    begin(self)
    raise OSError if included else Trouble


@app.task(bind=True, autoretry_for=(OSError,))
def narrowed_and_returning(self, **_):
    begin(self)


@app.task(bind=True)
def retrying(self, times=1000, **changes):
    begin(self)
    if self.request.retries < times:
        raise self.retry(countdown=1, **{k: v for k, v in changes.items() if k != "refused"})


@app.task(bind=True, autoretry_for=(OSError,))
def narrowed_and_retrying(self, times=1000, **_):
    begin(self)
    if self.request.retries < times:
        raise self.retry(countdown=1)


@app.task(bind=True)
def retrying_with_arguments(self, again=True, **_):
    begin(self)
    if again:
        raise self.retry(countdown=0, kwargs={"again": False})


@app.task(bind=True)
def replacing(self, **_):
    begin(self)
    raise self.replace(returning.s())


@app.task(bind=True)
def ignoring(self, **_):
    begin(self)
    raise Ignore


@app.task(bind=True)
def rejecting(self, **_):
    begin(self)
    raise Reject(Trouble(), requeue=False)


@app.task(bind=True)
def releasing(self, **_):
    begin(self)
    if self.request.retries < 1:
        self.visibility.release()


@app.task(bind=True)
def exiting(self, **_):
    begin(self)
    sys.exit(3)


@app.task(bind=True)
def killed(self, **_):
    begin(self)
    kill_self()


@app.task(bind=True, time_limit=3)
def limited(self, **_):
    begin(self)
    time.sleep(60)


@app.task(bind=True)
def raising_what_cannot_be_pickled(self, **_):
    begin(self)
    raise Unpicklable(1, 2)


@app.task(bind=True)
def returning_what_cannot_be_stored(self, **_):
    begin(self)
    return threading.Lock()


@app.task(bind=True)
def calling_itself(self, nested=False, **_):
    if nested:
        raise Trouble
    begin(self)
    try:
        self.run(nested=True)
    except Trouble:
        return "its own exception"


@app.task(bind=True, base=Task, acks_late=True)
def stock_retrying(self, queue=None, **_):
    begin(self)
    raise self.retry(countdown=0, queue=queue)


@app.task(bind=True, base=Task, acks_late=True, max_retries=1)
def stock_retrying_with_what_cannot_be_sent(self, **_):
    begin(self)
    raise self.retry(countdown=0, kwargs={"lock": threading.Lock()})


@app.task(bind=True)
def retrying_anew_and_killed(self, limit, killed_at, **_):
    begin(self)
    if self.request.retries == killed_at:
        kill_self()
    raise self.retry(countdown=0, max_retries=limit, kwargs={"limit": limit, "killed_at": killed_at})


@app.task(bind=True, base=Task, acks_late=True)
def stock_rejecting(self, **_):
    begin(self)
    raise Reject(Trouble(), requeue=False)


@app.task(bind=True, base=VisibilityTask)
def extending_and_failing(self, times=1, **_):
    begin(self)
    if self.request.retries < times:
        self.visibility.extend(600)
        note("failing", id=self.request.id)
        raise Trouble


@app.task(bind=True)
def adding(self, numbers, **_):
    """A chord's body."""
    begin(self)
    note("sum", id=self.request.root_id, sum=sum(numbers))


@app.task(bind=True)
def number(self, value, seconds=0, **_):
    begin(self)
    time.sleep(seconds if self.request.retries < 1 else 0)
    return value


@app.task(bind=True)
def retrying_and_killed(self, limit, killed_at, **_):
    begin(self)
    if self.request.retries == killed_at:
        kill_self()
    raise self.retry(countdown=1, max_retries=limit)


@app.task(bind=True)
def following(self, *_, **__):
    begin(self)
