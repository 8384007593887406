"""Queues of an app, by its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.task_queues import queue_of_route


def queue_names(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues, in the order of the settings, each once. No request.

    Those that workers consume (`task_queues` or `task_default_queue`), those that `task_routes` and tasks
    name, and, of the option `queues`, names that are no glob; with `predefined_queues` those and no others.
    """
    return list(options.predefined_queues) or named_queues(app, options)


def named_queues(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues as in `queue_names`, `predefined_queues` left out."""
    named = [name for name in options.queues if not any(sign in name for sign in "*?[")]
    routed = [name for route in _routes(app.conf.task_routes) if (name := queue_of_route(route))]
    of_tasks = [str(name) for task in app.tasks.values() if (name := getattr(task, "queue", None))]
    return list(dict.fromkeys([*app.amqp.queues, *routed, *of_tasks, *named]))


def _routes(setting: Any) -> Iterable[Any]:
    """The routes of `task_routes` that are mappings: a router that is a function would need a task."""
    routers = setting if isinstance(setting, list | tuple) else [setting]
    for router in routers:
        if isinstance(router, Mapping):
            yield from router.values()
        elif isinstance(router, list | tuple):
            yield from (pair[1] for pair in router if isinstance(pair, list | tuple) and len(pair) == 2)  # noqa: PLR2004 - pattern and route
