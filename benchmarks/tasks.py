"""The task module that all contenders run.

Importable wherever Celery is: the base class comes from the environment, which is `VisibilityTask` for our
transport, and Celery's own for the others.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from pathlib import Path

from celery.signals import worker_ready
from support.app import make_app
from support.diary import note

TASK_CLASS_VARIABLE = "BENCH_TASK_CLASS"
MEMORY_VARIABLE = "BENCH_MEMORY_FILE"
LISTENED_VARIABLE = "BENCH_LISTENED_FILE"
DELAY = 5
REST_SECONDS = 0.05
ERROR = "to be tried again"

app = make_app("tasks", task_cls=os.environ.get(TASK_CLASS_VARIABLE) or None)


@app.task(acks_late=True, ignore_result=True)
def nothing() -> None:
    """Do nothing."""


@app.task(acks_late=True, ignore_result=True)
def rest() -> None:
    """Take a slot for longer than it takes to receive the next message."""
    time.sleep(REST_SECONDS)


@app.task(acks_late=True, ignore_result=True)
def hold() -> None:
    """Run for longer than any benchmark."""
    time.sleep(3600)


@app.task(bind=True, acks_late=True, ignore_result=True, error_visibility_timeout=DELAY)
def fail_once(self) -> None:
    """Fail at the first attempt."""
    note("started", message=self.request.sqs["message_id"], attempt=self.request.retries)
    if not self.request.retries:
        raise RuntimeError(ERROR)


@worker_ready.connect
def tell_memory(**_: object) -> None:
    """Keep a file up to date with the bytes that the main process has allocated, once a second."""
    path = os.environ.get(MEMORY_VARIABLE)
    if path:
        threading.Thread(target=_tell_memory, args=(Path(path),), daemon=True).start()


def _tell_memory(path: Path) -> None:
    while True:
        gc.collect()
        fresh = path.with_suffix(".new")
        fresh.write_text(str(tracemalloc.get_traced_memory()[0]))
        fresh.replace(path)
        time.sleep(1)
