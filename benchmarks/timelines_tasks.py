"""The task of the timelines, for workers of both transports."""

from __future__ import annotations

import os
import time

from support.app import make_app
from support.diary import note

from celery_sqs_visibility import Failed, subscribe

TASK_CLASS_VARIABLE = "TIMELINE_TASK_CLASS"
WORKER_VARIABLE = "TIMELINE_WORKER"

app = make_app("timelines_tasks", task_cls=os.environ.get(TASK_CLASS_VARIABLE) or None)


class FirstAttemptError(Exception):
    """The failure of a first attempt, which the scene wants."""


@app.task(bind=True, acks_late=True, ignore_result=True)
def work(self, first: float, then: float | None = None) -> None:
    """Run for as long as `first` says; with `then`, fail and run for so long the next time."""
    worker = os.environ[WORKER_VARIABLE]
    note("started", message=self.request.id, worker=worker)
    fails = then is not None and self.request.retries == 0
    time.sleep(first if then is None or fails else then)
    note("failed" if fails else "done", message=self.request.id, worker=worker)
    if fails:
        raise FirstAttemptError


@app.task(bind=True, acks_late=True, ignore_result=True, inactivity_timeout=3)
def hang(self) -> None:
    """Show no life in the first attempt, and take two seconds in the next."""
    note("started", message=self.request.id, worker=os.environ[WORKER_VARIABLE])
    time.sleep(60 if self.request.retries == 0 else 2)
    note("done", message=self.request.id, worker=os.environ[WORKER_VARIABLE])


def on_failure(failed) -> None:
    """Write down the end of a run that could not do it itself."""
    if failed.error.startswith("InactivityError"):
        note("inactive", message=failed.delivery.task_id, worker=os.environ[WORKER_VARIABLE])


subscribe(on_failure, Failed)
