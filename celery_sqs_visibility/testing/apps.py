"""Requirements of the test kit on an app."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured


def require_sending(app: Celery[Any]) -> None:
    """Require that the app's tasks go to its broker.

    Raises:
        ImproperlyConfigured: the tasks are run where they are called.
    """
    if app.conf.task_always_eager:
        raise ImproperlyConfigured(
            f"task_always_eager of app {app.main!r} runs tasks without SQS: set it to False for this test"
        )
