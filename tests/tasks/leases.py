"""Tasks that look at their own lease."""

import time
from pathlib import Path

from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityLostError, VisibilityTask, message_lost

app = make_app("leases", task_cls=VisibilityTask)


@message_lost.connect(weak=False)
def on_lost(sender, delivery, reason, **_):
    note("signal", sender=sender, message_id=delivery.message_id, reason=reason)


def started(task, key, *_):
    lease = task.visibility
    note("started", key=key, stopping=lease.stopping, remaining=lease.remaining(), sqs=dict(task.request.sqs))


def done(task, facts, key, *_):
    note("done", key=key, lost=task.visibility.lost, **(facts or {}))


noting = noting_of(app, started, done)


def run_for(seconds, until=lambda: False):
    """Whether `until()` came true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until():
            return True
        time.sleep(0.05)
    return False


@noting
def cooperative(self, key, seconds):
    if run_for(seconds, lambda: self.visibility.stopping):
        note("saved", key=key)
        self.visibility.release()


@noting
def watching(self, key, seconds):
    least = [1e9]

    def look():
        least[0] = min(least[0], self.visibility.remaining())
        return self.visibility.lost

    if run_for(seconds, look):
        note("lost", key=key, remaining=self.visibility.remaining())
    return {"least": least[0]}


@noting
def until_lost(self, key, seconds):
    """Notice the loss and go on for some seconds."""
    if run_for(30, lambda: self.visibility.lost):
        note("lost", key=key)
    run_for(seconds)


@noting(max_retries=1)
def failing_late(self, path):
    """Fail twice, the first time once that file is there."""
    while not (self.request.retries or Path(path).exists()):
        time.sleep(0.05)
    note("failing", retries=self.request.retries)
    raise ValueError(path)


@noting(when_lost="terminate", max_retries=10)
def ended_when_lost(self, key, seconds):
    run_for(seconds)


@noting
def extending(self, key, seconds, run_seconds):
    try:
        note("extended", key=key, remaining=self.visibility.extend(seconds))
    except (VisibilityLostError, ValueError) as error:
        note("not extended", key=key, error=repr(error))
    run_for(run_seconds)


@noting
def extending_in_the_shutdown(self, key, seconds):
    run_for(30, lambda: self.visibility.stopping)
    note("asks", key=key)
    note("extended", key=key, remaining=self.visibility.extend(seconds))


@noting
def too_late(self, key):
    """Notice the loss, ask for more time all the same, and go on."""
    if run_for(30, lambda: self.visibility.lost):
        note("lost", key=key)
    try:
        self.visibility.extend(10)
    except VisibilityLostError as error:
        note("refused", key=key, error=str(error))
    run_for(1)
