"""The tasks of a project that moves away from kombu's SQS transport: its old code, and its new code.

`FLEET=old` is the code from before the move, with Celery's own task class. The new one has `VisibilityTask`.
"""

import os
import time

from celery import Task
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

IS_OLD = os.environ.get("FLEET") == "old"

app = make_app("fleet", task_cls=Task if IS_OLD else VisibilityTask)
DELAY = {"default_retry_delay": 1} if IS_OLD else {"default_retry_delay": 1, "error_visibility_timeout": 1}


class Trouble(Exception):
    """What the tasks fail with."""


def started(task, key):
    request = task.request
    transport = "ours" if getattr(request, "sqs", None) else "stock"
    note("started", key=key, on=transport, retries=request.retries, headers=request.headers)


@app.task(bind=True, max_retries=3, autoretry_for=(Trouble,), **DELAY)
def retried(self, key):
    """Old and new code try it again, each in its own way."""
    started(self, key)
    raise Trouble(key)


@app.task(bind=True, max_retries=3, **DELAY)
def unhandled(self, key):
    """The new code alone tries it again."""
    started(self, key)
    raise Trouble(key)


@app.task(bind=True, acks_on_failure_or_timeout=False, max_retries=None, **DELAY)
def left_to_sqs(self, key):
    """In the old code a failed run is not acknowledged, so that SQS hands its message out again."""
    started(self, key)
    raise Trouble(key)


@app.task(bind=True)
def slow(self, key, seconds):
    started(self, key)
    time.sleep(seconds)
    note("done", key=key)


if not IS_OLD:

    @app.task(bind=True, autoretry_for=(Trouble,))
    def added(self, key):
        """Only the new code has it."""
        started(self, key)

    @app.task(bind=True)
    def looking(self, key):
        """Uses what a `VisibilityTask` has."""
        started(self, key)
        view = self.visibility
        note("looked", lost=view.lost, stopping=view.stopping, remaining=view.remaining())
        view.extend(60)
        receives = self.request.properties["delivery_info"]["sqs_message"]["Attributes"]
        if receives["ApproximateReceiveCount"] == "1":
            view.release()
        note("done", key=key)
