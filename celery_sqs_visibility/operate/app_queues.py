"""Queues of an app, by its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.task.base import VisibilityTask


def queue_names(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues, in the order of the settings, each once. No request.

    Those that workers consume (`task_queues` or `task_default_queue`), those that `task_routes` and tasks
    name, and, of the option `queues`, names that are no glob; with `predefined_queues` those and no others.
    """
    return list(options.predefined_queues) or named_queues(app, options)


def named_queues(app: Celery, options: Options) -> list[str]:
    """Celery's names of the app's queues as in `queue_names`, `predefined_queues` left out."""
    named = [name for name in options.queues if not any(sign in name for sign in "*?[")]
    routed = [name for route in _routes(app.conf.task_routes) if (name := _queue_of(route))]
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


def _queue_of(route: Any) -> str | None:
    queue = route.get("queue") if isinstance(route, Mapping) else route
    name = getattr(queue, "name", queue)  # of a kombu.Queue
    return name if isinstance(name, str) and name else None


def queue_of_task(app: Celery, task: Any) -> str:
    """Celery's name of the queue that a task is published to, as far as its settings say. No request."""
    if name := _queue_of(getattr(task, "queue", None)):
        return name
    default = str(app.conf.task_default_queue)
    try:
        route = app.amqp.router.route({}, task.name, args=(), kwargs={})
    except Exception:  # noqa: BLE001 - the user's own router, which may look at the arguments
        return default
    return _queue_of(route.get("queue")) or default


def max_retries_by_queue(app: Celery) -> dict[str, list[int | None]]:
    """`max_retries` of the tasks whose failures come back in their queue, by Celery's name of it."""
    limits: dict[str, list[int | None]] = {}
    for task in app.tasks.values():
        if isinstance(task, VisibilityTask):
            limits.setdefault(queue_of_task(app, task), []).append(task.max_retries)
    return limits
