"""Tasks that look at their own lease."""

from __future__ import annotations

import os
import time

from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityLostError, VisibilityTask, message_lost

app = make_app("leases", task_cls=VisibilityTask)

STEP = 0.05


@message_lost.connect(weak=False)
def on_lost(sender, delivery, reason, **_):
    note("signal", sender=sender, message_id=delivery.message_id, reason=reason, pid=os.getpid())


def run_for(task, seconds, until=lambda: False):
    """Whether `until()` came true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until():
            return True
        time.sleep(STEP)
    return False


@app.task(bind=True)
def cooperative(self, key, seconds):
    note("started", key=key, stopping=self.visibility.stopping, pid=os.getpid())
    if run_for(self, seconds, lambda: self.visibility.stopping):
        note("saved", key=key)
        self.visibility.release()
    note("done", key=key)


@app.task(bind=True)
def watching(self, key, seconds):
    note("started", key=key, remaining=self.visibility.remaining(), sqs=dict(self.request.sqs))
    least = [1e9]

    def look():
        least[0] = min(least[0], self.visibility.remaining())
        return self.visibility.lost

    if run_for(self, seconds, look):
        note("lost", key=key, remaining=self.visibility.remaining())
    note("done", key=key, least=least[0])


@app.task(bind=True)
def until_lost(self, key, seconds):
    """Notice the loss and go on for some seconds."""
    note("started", key=key)
    if run_for(self, 30, lambda: self.visibility.lost):
        note("lost", key=key)
    run_for(self, seconds)
    note("done", key=key, lost=self.visibility.lost)


@app.task(bind=True, on_lost="terminate", max_retries=10)
def ended_when_lost(self, key, seconds):
    note("started", key=key)
    run_for(self, seconds)
    note("done", key=key)


@app.task(bind=True)
def extending(self, key, seconds, run_seconds):
    note("started", key=key)
    try:
        note("extended", key=key, remaining=self.visibility.extend(seconds))
    except (VisibilityLostError, ValueError) as error:
        note("not extended", key=key, error=repr(error))
    run_for(self, run_seconds)
    note("done", key=key, lost=self.visibility.lost)


@app.task(bind=True)
def extending_in_the_shutdown(self, key, seconds):
    note("started", key=key)
    run_for(self, 30, lambda: self.visibility.stopping)
    note("asks", key=key)
    note("extended", key=key, remaining=self.visibility.extend(seconds))
    note("done", key=key)


@app.task(bind=True)
def too_late(self, key):
    """Notice the loss, ask for more time all the same, and go on."""
    note("started", key=key)
    if run_for(self, 30, lambda: self.visibility.lost):
        note("lost", key=key)
    try:
        self.visibility.extend(10)
    except VisibilityLostError as error:
        note("refused", key=key, error=str(error))
    run_for(self, 1)
    note("done", key=key)
