"""Tasks that a worker of `work` imports after its start."""

import time
from pathlib import Path

from celery import Task
from work import app, noting, stock_late

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
