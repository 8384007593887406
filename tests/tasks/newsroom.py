"""Tasks that go to all workers: the exchange is `NEWS`, and with `QUEUE` the worker's queue has that name."""

import os

from celery import Task
from kombu import Queue
from kombu.common import Broadcast
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

STOCK = "STOCK" in os.environ

app = make_app("newsroom", task_cls=Task if STOCK else VisibilityTask)
NEWS = os.environ["NEWS"]
app.conf.task_queues = [Queue(app.conf.task_default_queue), Broadcast(NEWS, queue=os.environ.get("QUEUE"))]


def started(task, key):
    note("started", key=key, worker=task.request.hostname, retries=task.request.retries)


@app.task(bind=True)
def read(self, key):
    started(self, key)


@app.task
def ping(key):
    """From a process of the pool."""
    (answer,) = app.control.ping(timeout=20, limit=1)
    note("pinged", key=key, nodes=list(answer))


@app.task(bind=True, max_retries=2, error_visibility_timeout=1)
def failing(self, key, where, times):
    """Fails in that worker, and succeeds in the others."""
    started(self, key)
    if self.request.hostname.startswith(where) and self.request.retries < times:
        raise RuntimeError(key)
    note("read", key=key, worker=self.request.hostname)


@app.task(bind=True)
def forward(self, key):
    """Sends the news from a worker."""
    read.apply_async((key,), queue=NEWS)
