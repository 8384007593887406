"""Tasks of which one has the first worker's main thread stand still as it comes."""

import threading
import time

from celery.signals import task_received
from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.core import held

held.STANDS_STILL_SECONDS = 3.0  # a minute, for users

app = make_app("standing", task_cls=VisibilityTask)


@task_received.connect(weak=False)
def stand_still(request, **_):
    if request.hostname.startswith("first") and request.args[0] == "stop":
        note("stands still")
        threading.Event().wait()


@noting_of(app)
def sleep(_self, key, seconds):
    time.sleep(seconds)
    note("done", key=key)
