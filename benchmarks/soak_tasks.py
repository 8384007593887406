"""The mix of the soak: most are quick, some fail and come back, some take a second or two."""

from __future__ import annotations

import time

from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("soak_tasks", task_cls=VisibilityTask)
app.conf.task_ignore_result = True


@app.task
def quick(key: int) -> None:
    """Nothing but a note."""
    note("done", key=key)


@app.task(bind=True, error_visibility_timeout=[1, 2, 3])
def failing(self, key: int) -> None:
    """Fail once, twice or three times, then end well."""
    if self.request.retries < 1 + key % 3:
        raise RuntimeError("once more")
    note("done", key=key)


@app.task
def slow(key: int) -> None:
    """A second, or two."""
    time.sleep(1 + key // 100 % 2)
    note("done", key=key)
