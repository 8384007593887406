"""The tasks of `work`, in a worker that revokes each `quick` one once it has been received."""

import time
from pathlib import Path

from celery.signals import task_received
from celery.worker import state
from work import app, started

__all__ = ["app"]


@app.task(bind=True)
def until_it_exists(self, path):
    started(self, path)
    while not Path(path).exists():
        time.sleep(0.05)


@task_received.connect(weak=False)
def revoke(request, **_):
    if request.name == "work.quick":
        state.revoked.add(request.id)
