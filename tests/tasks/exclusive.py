"""Exclusive tasks."""

import os
import signal
import time
from pathlib import Path

from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityTask, s3_object

app = make_app("exclusive", task_cls=VisibilityTask)


def started(task, key, *_, **__):
    checkpoint = task.visibility.last_checkpoint
    note("started", key=key, retries=task.request.retries, checkpoint=checkpoint)


def done(task, result, key, *_, **__):
    note("done", key=key, lost=task.visibility.lost)


def of_first(args, kwargs):
    return args[0]


noting = noting_of(app, started, done)


@noting(exclusive=True)
def once(self, key, seconds=0.0):
    time.sleep(seconds)
    return self.request.id


@noting(exclusive=of_first, max_retries=0)
def keyed(self, key, seconds=0.0):
    time.sleep(seconds)
    return self.request.id


@noting
def plain(self, key):
    """Nothing."""


@noting(exclusive=True, max_retries=0)
def until_there(self, path, payload=""):
    """Run until that file is there."""
    while not Path(path).exists():
        time.sleep(0.05)
    return "done"


@noting(exclusive=of_first, error_visibility_timeout=1)
def killed_once(self, key):
    """Take the whole worker along, at the first attempt."""
    if self.visibility.last_checkpoint is None:
        self.visibility.checkpoint("reached")
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@noting(exclusive=of_first)
def endless(self, key):
    """Show life at the first attempt, until its process is killed."""
    while not self.request.retries:
        note("alive", key=key)
        time.sleep(0.01)


def hear_at_length(*_):
    note("heard")
    time.sleep(1)


@noting(exclusive=of_first, time_limit=1, error_visibility_timeout=0, on_retry=hear_at_length)
def limited(self, key):
    """Show life at the first attempt, until its process is killed."""
    while not self.request.retries:
        note("alive", key=key)
        time.sleep(0.01)


@noting(exclusive=of_first, on_retry=lambda *_: time.sleep(1))
def in_parts(self, key, part=1):
    """Three parts, each of which is over a second after it has sent the next."""
    self.visibility.checkpoint(part)
    if part == 1:
        self.visibility.continue_later(part=2)
    if part == 2:
        self.retry(args=(key,), kwargs={"part": 3}, countdown=0)


@app.task(
    bind=True, name="exclusive.arrivals", sqs_event="s3:*", exclusive=lambda *_: "arrival", max_retries=0
)
def arrivals(self, record):
    key = s3_object(record).key
    note("arrived", key=key, id=self.request.id)
    time.sleep(3 if key == "slow" else 0)
    raise ValueError(key)
