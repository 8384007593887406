"""Tasks that note what happens to them; the tests read the diary."""

import os
import threading
import time
from functools import partial
from pathlib import Path

from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.worker.request import Request
from support.app import make_app, noting_of
from support.diary import note
from support.runs import Unpicklable, exit_now, kill_self, nap

from celery_sqs_visibility import VisibilityTask, publish_batch

app = make_app("work", task_cls=VisibilityTask)


class Trouble(Exception):
    """What the tasks fail with."""


def started(task, key, *_, **__):
    request = task.request
    sqs = getattr(request, "sqs", None)
    note(
        "started",
        key=key,
        task=task.name,
        id=request.id,
        retries=request.retries,
        redelivered=request.delivery_info["redelivered"],
        sqs=dict(sqs) if sqs else None,
        headers=request.headers,
    )


def done(task, result, key, *_, **__):
    note("done", key=key)


noting = noting_of(app, started, done)
stock_late = partial(noting, base=Task, acks_late=True)


def fail_until(task, key, times, error=Trouble):
    if task.request.retries < times:
        note("failing", key=key)
        raise error(key)
    return key


def failing(name, times=1, error=Trouble, **options):
    """A task of that name that fails `times` times."""

    def body(self, key, times=times):
        return fail_until(self, key, times, error)

    body.__name__ = name
    noting(body, **options)


failing("plain")
failing("number", error_visibility_timeout=2)
failing("later", error_visibility_timeout=4)
failing("computed", times=2, error_visibility_timeout=lambda retries, exc: 1 + retries if exc.args else 30)
failing("unpicklable", error=partial(Unpicklable, 1), error_visibility_timeout=1)
failing("hopeless", times=1000, error_visibility_timeout=1, max_retries=2)


@app.task(bind=True, max_retries=0)
def item(self, key):
    """Of a `map`: "bad" fails; a path kills the process, unless there is such a file."""
    note("item", key=key)
    if key == "bad":
        raise Trouble(key)
    if key.startswith("/") and not Path(key).exists():
        Path(key).touch()
        kill_self()


@app.task(bind=True)
def quick(self, key="quick"):
    started(self, key)
    return key


@noting
def asking(self, key, timeout):
    """Asks the workers."""
    note("answered", key=key, answers=self.app.control.inspect(timeout=timeout, limit=1).ping())


@noting
def slow(self, key, seconds):
    nap(seconds)
    return key


@noting
def held(self, key, path):
    """Runs until that file exists."""
    while not Path(path).exists():
        time.sleep(0.05)


@app.task
def on_error(request, exc, traceback):
    note("errback", exc=repr(exc))


@noting(error_visibility_timeout=30)
def retrying(self, key, countdown=1, **changes):
    if self.request.retries < 1:
        raise self.retry(countdown=countdown, **changes)


@noting(error_visibility_timeout=1, soft_time_limit=3)
def softly_limited(self, key):
    if self.request.retries < 1:
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            note("limit", key=key)
            raise


@noting(error_visibility_timeout=1)
def slow_then_failing(self, key, seconds):
    if self.request.retries == 0:
        nap(seconds)
    return fail_until(self, key, 1)


class Prepared(VisibilityTask):
    """Has a `__call__` and a `before_start` of its own, as users have."""

    def before_start(self, task_id, args, kwargs):
        note("preparing")
        if self.request.retries < 1:
            raise Trouble("not prepared")

    def __call__(self, *args, **kwargs):
        if self.request.retries < 2:
            note("calling")
            raise Trouble("no session")
        return self.run(*args, **kwargs)


@noting(base=Prepared, error_visibility_timeout=1)
def prepared(self, key):
    """Nothing."""


@app.task(bind=True, max_retries=0)
def once(self, key):
    started(self, key)


@noting(max_retries=0)
def hopeless_killer(self, key):
    kill_self()


@noting
def with_a_queue_of_its_own(self, key, name):
    with self.app.connection_for_write() as connection, connection.SimpleQueue(name) as queue:
        queue.put({"a": 1})
        queue.get(timeout=20).ack()


@app.task(bind=True, base=Task, acks_late=False)
def stock(self, key):
    started(self, key)
    return key


@noting(base=Task, acks_late=False)
def stock_slow(self, key, seconds):
    nap(seconds)


@stock_late(max_retries=2)
def stock_retrying(self, key):
    if self.request.retries < 1:
        raise self.retry(countdown=0)


@stock_late(acks_on_failure_or_timeout=False)
def stock_failing(self, key):
    if not self.request.delivery_info["redelivered"]:
        raise Trouble(key)


@stock_late
def stock_exiting(self, key):
    raise SystemExit(3)


@stock_late
def stock_out_of_memory(self, key):
    if not self.request.delivery_info["redelivered"]:
        raise MemoryError


class UsersRequest(Request):
    """Not ours, and not derived from ours."""


class WithARequestOfItsOwn(Task):
    Request = UsersRequest


@noting(base=WithARequestOfItsOwn, acks_late=True)
def slow_with_a_request_of_its_own(self, key, seconds):
    nap(seconds)


def call_itself():
    return call_itself()


#: Ways for a run to end badly, of which no exception handler knows: what it calls or raises.
CRASHES = {
    "os._exit": exit_now,
    "SIGKILL": kill_self,
    "RecursionError": call_itself,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "MemoryError": MemoryError,
}


def crash(key):
    error = CRASHES[key]()
    raise error


@noting(error_visibility_timeout=1, max_retries=2)
def crashing(self, key, times=1):
    """`key` says how."""
    if self.request.retries < times:
        note("failing", key=key)
        crash(key)


@stock_late
def stock_crashing(self, key):
    crash(key)


@stock_late(reject_on_worker_lost=True)
def stock_crashing_once(self, key):
    if not self.request.delivery_info["redelivered"]:
        crash(key)


@noting
def looking_around(self, key):
    """What this process has of the worker's."""
    threads = [thread.name for thread in threading.enumerate()]
    note("looked", key=key, threads=threads, parent=os.getppid())


@noting
def publishing(self, key):
    quick.delay(f"published by {key}")


@noting
def publishing_many(self, key, count):
    with publish_batch(self.app):
        for number in range(count):
            quick.delay(number)


@noting(error_visibility_timeout=1)
def replaced_in_a_block(self, key):
    with publish_batch(self.app):
        quick.delay(f"with {key}")
        raise self.replace(quick.si(f"in place of {key}"))


@noting(error_visibility_timeout=1)
def retried_with_other_arguments_in_a_block(self, key, again=False):
    if not again:
        with publish_batch(self.app):
            quick.delay(f"with {key}")
            raise self.retry(args=(f"{key} again", True), countdown=0)


@noting(error_visibility_timeout=1)
def rejected_in_a_block(self, key):
    with publish_batch(self.app):
        quick.delay(f"with {key}")
        raise Reject("it is of no use", requeue=False)


@noting(error_visibility_timeout=30)
def retried_in_a_block(self, key):
    if self.request.retries < 1:
        with publish_batch(self.app):
            quick.delay(f"with {key}")
            raise self.retry(countdown=1)
