"""The queues of an app's tasks, and how often their failures come back there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def queue_of_route(route: Any) -> str | None:
    """Celery's name of the queue that a route leads to."""
    queue = route.get("queue") if isinstance(route, Mapping) else route
    name = getattr(queue, "name", queue)  # of a kombu.Queue
    return name if isinstance(name, str) and name else None


def queue_of_task(app: Any, task: Any) -> str:
    """Celery's name of the queue that a task is published to, as far as its settings say. No request."""
    if name := queue_of_route(getattr(task, "queue", None)):
        return name
    default = str(app.conf.task_default_queue)
    # A copy: a look-up adds the queue that it names, and a worker consumes all of the app's own.
    router = app.amqp.Router(app.amqp.Queues(list(app.amqp.queues.values())))
    try:
        route = router.route({}, task.name, args=(), kwargs={})
    except Exception:  # noqa: BLE001 - the user's own router, which may look at the arguments
        return default
    return queue_of_route(route.get("queue")) or default


def max_retries_by_queue(app: Any) -> dict[str, list[int | None]]:
    """`max_retries` of the tasks whose failures come back in their queue, by Celery's name of it."""
    limits: dict[str, list[int | None]] = {}
    for task in app.tasks.values():
        if hasattr(task, "error_visibility_timeout"):  # a `VisibilityTask`: others that have it are refused
            limits.setdefault(queue_of_task(app, task), []).append(task.max_retries)
    return limits
