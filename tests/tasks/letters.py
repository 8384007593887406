"""Tasks that fail for good; `test_dead_letters.py` reads what becomes of their messages."""

import os

from celery.exceptions import Reject
from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("letters", task_cls=VisibilityTask)


class Trouble(Exception):
    """What the tasks fail with."""


noting = noting_of(app)


@app.task
def on_error(request, exc, traceback):
    note("errback", exc=repr(exc))


@noting(max_retries=1, error_visibility_timeout=1)
def twice(self, key, text="in vain"):
    raise Trouble(text)


@noting(dont_autoretry_for=(Trouble,))
def once(self, key):
    raise Trouble(key)


@noting(dont_autoretry_for=(Trouble,))
def mended(self, key):
    """Fails below the number that the worker is given: everything, two of them, nothing."""
    if key < int(os.environ["BROKEN_BELOW"]):
        raise Trouble(f"number {key}")
    note("mended", key=key)


@noting(max_retries=1, error_visibility_timeout=1, when_exhausted="keep")
def precious(self, key):
    raise Trouble(key)


@noting
def rejecting(self, key):
    raise Reject("not for me", requeue=False)
