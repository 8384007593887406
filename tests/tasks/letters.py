"""Tasks that fail for good; `test_dead_letters.py` reads what becomes of their messages."""

from __future__ import annotations

import threading

from celery.exceptions import Reject
from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("letters", task_cls=VisibilityTask)


class Trouble(Exception):
    """What the tasks fail with."""


class Unpicklable(Exception):
    """Fails to travel from the child to the main process."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def started(task, key, *_, **__):
    note("started", key=key, retries=task.request.retries)


noting = noting_of(app, started)


@app.task
def on_error(request, exc, traceback):
    note("errback", exc=repr(exc))


@noting(max_retries=1, error_visibility_timeout=1)
def twice(self, key, text="in vain"):
    raise Trouble(text)


@noting(dont_autoretry_for=(Trouble,))
def once(self, key):
    raise Trouble(key)


@noting(max_retries=0)
def unpicklable(self, key):
    raise Unpicklable("one", "two")


def even(depth, text):
    """Fail that deep, in two functions that call each other: Python would fold the lines of one."""
    if not depth:
        raise Trouble(text)
    odd(depth - 1, text)


def odd(depth, text):
    even(depth - 1, text)


@noting(max_retries=0)
def deep(self, key):
    """A traceback of many lines, and a message that SQS would refuse."""
    even(300, "bad \x00\x0b\ud800\uffff " + "x" * 20_000)


@noting(max_retries=1, error_visibility_timeout=1, when_exhausted="keep")
def precious(self, key):
    raise Trouble(key)


@noting
def rejecting(self, key):
    raise Reject("not for me", requeue=False)
