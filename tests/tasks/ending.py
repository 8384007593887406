"""The tasks of `work`, in a worker whose user listens to its end: signals, `atexit`, what is saved."""

import atexit
import os
import time
from pathlib import Path

from celery.signals import worker_ready, worker_shutdown
from celery.worker import state
from support.diary import note
from support.runs import nap
from work import Trouble, app, noting, stock_late

__all__ = ["app"]

MAIN = os.getpid()

app.conf.beat_schedule = {"each second": {"task": "ending.tick", "schedule": 1.0, "options": {"expires": 1}}}
app.conf.beat_max_loop_interval = 1


@app.task
def tick():
    """Nothing: that it was sent is what counts."""


@noting
def unwound(self, key, seconds, cleanup):
    """A run that cleans up, for so many seconds."""
    try:
        nap(seconds)
    finally:
        nap(cleanup)
        note("unwound", key=key)


@noting(max_retries=0)
def slow_once(self, key, seconds):
    """A run that may fail once only."""
    nap(seconds)


@noting(max_retries=0)
def failing_as_it_is_cut_short(self, key, seconds):
    """A run whose cleanup fails."""
    try:
        nap(seconds)
    finally:
        raise Trouble("the connection is closed")


@stock_late
def stock_late_slow(self, key, seconds):
    """A run of Celery's own base class."""
    nap(seconds)


@worker_ready.connect(weak=False)
def revoke(**_):
    state.revoked.add("revoked before the end")


@worker_shutdown.connect(weak=False)
def shut_down(**_):
    note("worker_shutdown")


@atexit.register
def leave():
    """What error trackers do: send what waits."""
    if os.getpid() == MAIN:
        note("atexit")
        if stuck := os.environ.get("STUCK_AT_EXIT"):
            while Path(stuck).exists():
                time.sleep(0.05)
