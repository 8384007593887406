"""Tasks that note what happens to them; the tests read the diary."""

from __future__ import annotations

import os
import sys
import threading
import time

from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.worker.request import Request
from support.app import make_app
from support.diary import note
from support.dying import exit_now, kill_self

from celery_sqs_visibility import VisibilityTask, publish_batch

app = make_app("work", task_cls=VisibilityTask)


class Trouble(Exception):
    """What the tasks fail with."""


class Unpicklable(Exception):
    """Fails to travel from the child to the main process."""

    def __init__(self, one, two):
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


def started(task, key):
    request = task.request
    note(
        "started",
        key=key,
        task=task.name,
        id=request.id,
        retries=request.retries,
        redelivered=request.delivery_info["redelivered"],
        sqs=dict(request.sqs) if request.sqs else None,
        headers=request.headers,
    )


def fail_until(task, key, times, error=None):
    started(task, key)
    if task.request.retries < times:
        note("failing", key=key)
        raise error or Trouble(key)
    note("done", key=key)
    return key


@app.task(bind=True)
def quick(self, key="quick"):
    started(self, key)
    return key


@app.task(bind=True)
def slow(self, key, seconds):
    started(self, key)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
    note("done", key=key)
    return key


@app.task(bind=True)
def plain(self, key, times=1):
    return fail_until(self, key, times)


@app.task(bind=True, error_visibility_timeout=2)
def number(self, key, times=1):
    return fail_until(self, key, times)


@app.task(bind=True, error_visibility_timeout=lambda retries, exc: 1 + retries if exc.args else 30)
def computed(self, key, times=2):
    return fail_until(self, key, times)


@app.task(bind=True, error_visibility_timeout=1)
def unpicklable(self, key, times=1):
    return fail_until(self, key, times, Unpicklable(1, 2))


@app.task(bind=True, error_visibility_timeout=1, max_retries=2)
def hopeless(self, key):
    return fail_until(self, key, 1000)


@app.task
def on_error(request, exc, traceback):
    note("errback", exc=repr(exc))


@app.task(bind=True, error_visibility_timeout=30)
def retrying(self, key, countdown=1, **changes):
    started(self, key)
    if self.request.retries < 1:
        raise self.retry(countdown=countdown, **changes)
    note("done", key=key)


@app.task(bind=True, error_visibility_timeout=1, soft_time_limit=3)
def softly_limited(self, key):
    started(self, key)
    if self.request.retries < 1:
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            note("limit", key=key)
            raise
    note("done", key=key)


@app.task(bind=True, base=Task, acks_late=False)
def stock(self, key):
    note("started", key=key, retries=self.request.retries, sqs=getattr(self.request, "sqs", None))
    return key


@app.task(bind=True, base=Task, acks_late=False)
def stock_slow(self, key, seconds):
    started(self, key)
    time.sleep(seconds)
    note("done", key=key)


@app.task(bind=True, base=Task, acks_late=True, max_retries=2)
def stock_retrying(self, key):
    note("started", key=key, retries=self.request.retries)
    if self.request.retries < 1:
        raise self.retry(countdown=0)
    note("done", key=key)


@app.task(bind=True, base=Task, acks_late=True, acks_on_failure_or_timeout=False)
def stock_failing(self, key):
    note("started", key=key, redelivered=self.request.delivery_info["redelivered"])
    if not self.request.delivery_info["redelivered"]:
        raise Trouble(key)
    note("done", key=key)


@app.task(bind=True, error_visibility_timeout=1)
def slow_then_failing(self, key, seconds):
    if self.request.retries == 0:
        time.sleep(seconds)
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


@app.task(bind=True, base=Prepared, error_visibility_timeout=1)
def prepared(self, key):
    started(self, key)
    note("done", key=key)


@app.task(bind=True, max_retries=0)
def once(self, key):
    started(self, key)


@app.task(bind=True, max_retries=0)
def hopeless_killer(self, key):
    started(self, key)
    kill_self()


@app.task(bind=True, base=Task, acks_late=True)
def stock_exiting(self, key):
    note("started", key=key)
    raise SystemExit(3)


@app.task(bind=True)
def with_a_queue_of_its_own(self, key, name):
    started(self, key)
    with self.app.connection_for_write() as connection, connection.SimpleQueue(name) as queue:
        queue.put({"a": 1})
        message = queue.get(timeout=20)
        message.ack()
    note("done", key=key)


@app.task(bind=True, base=Task, acks_late=True)
def stock_out_of_memory(self, key):
    note("started", key=key)
    if not self.request.delivery_info["redelivered"]:
        raise MemoryError
    note("done", key=key)


class UsersRequest(Request):
    """Not ours, and not derived from ours."""


class WithARequestOfItsOwn(Task):
    Request = UsersRequest


@app.task(bind=True, base=WithARequestOfItsOwn, acks_late=True)
def slow_with_a_request_of_its_own(self, key, seconds):
    note("started", key=key)
    time.sleep(seconds)
    note("done", key=key)


def call_itself():
    return call_itself()


def press_ctrl_c():
    raise KeyboardInterrupt


def end_a_generator():
    raise GeneratorExit


def run_out_of_memory():
    raise MemoryError


#: Ways for a run to end badly, of which no exception handler knows.
CRASHES = {
    "os._exit": exit_now,
    "SIGKILL": kill_self,
    "SystemExit": sys.exit,
    "KeyboardInterrupt": press_ctrl_c,
    "GeneratorExit": end_a_generator,
    "MemoryError": run_out_of_memory,
    "RecursionError": call_itself,
}


@app.task(bind=True, error_visibility_timeout=1, max_retries=2)
def crashing(self, key, times=1):
    """`key` says how."""
    started(self, key)
    if self.request.retries < times:
        note("failing", key=key)
        CRASHES[key]()
    note("done", key=key)


@app.task(bind=True, base=Task, acks_late=True)
def stock_crashing(self, key):
    note("started", key=key)
    CRASHES[key]()


@app.task(bind=True, base=Task, acks_late=True, reject_on_worker_lost=True)
def stock_crashing_once(self, key):
    note("started", key=key)
    if not self.request.delivery_info["redelivered"]:
        CRASHES[key]()
    note("done", key=key)


@app.task(bind=True)
def looking_around(self, key):
    """What this process has of the worker's."""
    started(self, key)
    threads = [thread.name for thread in threading.enumerate()]
    note("looked", key=key, threads=threads, parent=os.getppid())


@app.task(bind=True)
def publishing(self, key):
    started(self, key)
    quick.delay(f"published by {key}")


@app.task(bind=True)
def publishing_many(self, key, count):
    started(self, key)
    with publish_batch(self.app):
        for number in range(count):
            quick.delay(number)


@app.task(bind=True, error_visibility_timeout=1)
def replaced_in_a_block(self, key):
    started(self, key)
    with publish_batch(self.app):
        quick.delay(f"with {key}")
        raise self.replace(quick.si(f"in place of {key}"))


@app.task(bind=True, error_visibility_timeout=1)
def retried_with_other_arguments_in_a_block(self, key, again=False):
    started(self, key)
    if not again:
        with publish_batch(self.app):
            quick.delay(f"with {key}")
            raise self.retry(args=(f"{key} again", True), countdown=0)


@app.task(bind=True, error_visibility_timeout=1)
def rejected_in_a_block(self, key):
    started(self, key)
    with publish_batch(self.app):
        quick.delay(f"with {key}")
        raise Reject("it is of no use", requeue=False)


@app.task(bind=True, error_visibility_timeout=30)
def retried_in_a_block(self, key):
    started(self, key)
    if self.request.retries < 1:
        with publish_batch(self.app):
            quick.delay(f"with {key}")
            raise self.retry(countdown=1)
