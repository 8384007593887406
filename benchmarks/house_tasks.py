"""The worker of `house_walks.py`: two tasks, and a count of which file of the package calls which.

Celery's main process counts in all of its threads, from the import of this module on; the pool's processes
do not.
"""

from __future__ import annotations

import os
from pathlib import Path

import paths  # noqa: F401 - where `support` is
from house_tracer import Tracer, serve
from support.app import make_app

from celery_sqs_visibility import VisibilityTask

DIRECTORY_VARIABLE = "HOUSE_DIRECTORY"
RETRY_SECONDS = 3600

app = make_app("house", task_cls=VisibilityTask)

if DIRECTORY_VARIABLE in os.environ:
    tracer = Tracer()
    serve(tracer, Path(os.environ[DIRECTORY_VARIABLE]))
    tracer.install()


@app.task
def succeed() -> None:
    """Do nothing."""


@app.task(error_visibility_timeout=RETRY_SECONDS)
def fail() -> None:
    """Come back in an hour."""
    raise RuntimeError
