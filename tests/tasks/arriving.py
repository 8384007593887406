"""Tasks that a worker of `work` imports after its start."""

from __future__ import annotations

import time
from pathlib import Path

from celery import Task
from work import app, noting, stock_late

from celery_sqs_visibility import VisibilityTask

__all__ = ["app"]


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.05)


@stock_late
def stock(self, key, path):
    wait_for(path)


@noting(base=Task, acks_late=False)
def early(self, key, path):
    wait_for(path)


@noting
def visible(self, key, path):
    wait_for(path)


@noting(exclusive=lambda args, kwargs: args[0])
def exclusive(self, key, path):
    wait_for(path)


@app.task(base=Task, exclusive=True)
def misplaced():
    """`exclusive` is a setting of `VisibilityTask`."""


@app.task(base=VisibilityTask, sqs_event="s3:ObjectCreated:*")
def on_object(event):
    """Events are routed from a worker's start on."""
