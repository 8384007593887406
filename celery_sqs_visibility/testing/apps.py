"""What an app must be for its tasks to be tested on SQS."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured


def require_sending(app: Celery[Any]) -> None:
    """An app whose tasks go to its broker.

    Raises:
        ImproperlyConfigured: they are run where they are called.
    """
    if app.conf.task_always_eager:
        raise ImproperlyConfigured(
            f"task_always_eager of app {app.main!r} runs tasks without SQS: set it to False for this test"
        )
