"""An app under test: its tasks and its queues."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.queues import Creation
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues
from celery_sqs_visibility.transport.routing import max_retries_by_queue


def load_tasks(app: Celery[Any]) -> None:
    """Import the app's tasks, and bind them to the app.

    Raises:
        ImproperlyConfigured: tasks run in the caller, without a broker.
    """
    app.loader.import_default_modules()
    app.finalize()
    if app.conf.task_always_eager:
        raise ImproperlyConfigured(
            f"task_always_eager of app {app.main!r} runs tasks without SQS: set it to False for this test"
        )


def create_queues(app: Celery[Any], options: Options, creation: Creation) -> list[str]:
    """Create the app's queues as `celery sqs queues create` does. Returns the names that workers consume."""
    names = queue_names(app, options)
    creation.run(plan_queues(names, options, max_retries_by_queue(app)))
    return names
