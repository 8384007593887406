"""Routing by the settings of this process's apps: the queues of tasks, and exchanges, which SQS lacks.

Direct exchanges are a table in each process, fanout exchanges are SNS topics. Other types are refused, and so
is fanout without SNS: otherwise a message would silently reach only the queues that its publisher has
declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kombu.transport.virtual import exchange as virtual

from celery_sqs_visibility.contacts.app import active_apps
from celery_sqs_visibility.errors import UnroutableError
from celery_sqs_visibility.policy.control_names import Use, use_of

UNBOUND: Final = (
    "no queue is bound to exchange {!r} with routing key {!r} here. On SQS there are exchanges of type "
    "fanout (Broadcast) with the option supports_fanout only, none of type topic, and any other is known "
    "only where it is declared: publish to the queue by its name (queue=), or declare it first (declare=)"
)


def refuse_type(exchange: str, kind: str, *, supports_fanout: bool) -> None:
    """Raise `UnroutableError` for a type of exchange whose messages other processes would not get.

    Celery's own exchanges are allowed: Celery publishes to them unasked. `supports_fanout` is the option.
    """
    if kind in {"direct", "fanout" if supports_fanout else "direct"} or use_here(exchange):
        return
    fanout = "Set the transport option supports_fanout, which needs SNS"
    remedy = fanout if kind == "fanout" else "Use a direct exchange"
    raise UnroutableError(
        f"exchange {exchange!r} is of type {kind!r}, and on SQS there are only direct exchanges: other "
        f"processes would not get its messages. {remedy}, or publish to each queue by its name"
    )


class DirectExchange(virtual.DirectExchange):
    """A direct exchange with the bindings of this connection and of this process's apps."""

    def lookup(self, table: Any, exchange: str, routing_key: str, default: str | None) -> Any:
        """The names of the queues that get the message; if there are none, kombu uses `default`.

        Raises:
            UnroutableError: there is no queue and no default. Celery's own exchanges may have no listeners.
        """
        queues = super().lookup(table, exchange, routing_key, default)
        if queues or default is not None:
            return queues
        queues = _bound_by_apps(exchange, routing_key)
        if not queues and not use_here(exchange):
            raise UnroutableError(UNBOUND.format(exchange, routing_key))
        return queues


def _bound_by_apps(exchange: str, routing_key: str) -> list[str]:
    """The names of the queues that the settings of this process's apps bind to a direct exchange.

    An AMQP broker knows these bindings from whoever declares them. Celery publishes without declaring a queue
    if a route names an exchange (celery/app/amqp.py: `_create_task_sender`).
    """
    queues = [queue for app in configured_apps() for queue in app.amqp.queues.values()]
    return sorted({queue.name for queue in queues if _binds(queue, exchange, routing_key)})


def _binds(queue: Any, exchange: str, routing_key: str) -> bool:
    return any(
        each.exchange is not None
        and (each.exchange.name, each.exchange.type, each.routing_key) == (exchange, "direct", routing_key)
        for each in (queue, *queue.bindings)
    )


def use_here(exchange: str) -> Use | None:
    """What Celery uses the exchange for, by the names in this process's apps; `None` if it isn't Celery's."""
    return use_of(exchange, (str(app.conf.event_exchange) for app in configured_apps()))


def is_an_apps_fanout(exchange: str) -> bool:
    """Returns whether an app of this process has a queue that is bound to this fanout exchange."""
    queues = [queue for app in configured_apps() for queue in app.amqp.queues.values()]
    bound = [each.exchange for queue in queues for each in (queue, *queue.bindings)]
    return any(each.name == exchange and each.type == "fanout" for each in bound if each is not None)


def configured_apps() -> Iterator[Any]:
    """The apps of this process whose settings have been read."""
    yield from (app for app in active_apps() if app.configured)


def queue_of_route(route: Any) -> str | None:
    """Celery's name of the queue that a route leads to."""
    queue = route.get("queue") if isinstance(route, Mapping) else route
    name = getattr(queue, "name", queue)  # `queue` may be a kombu.Queue
    return name if isinstance(name, str) and name else None


def queue_of_task(app: Any, task: Any) -> str:
    """Celery's name of the queue that the settings route a task to. Makes no request."""
    if name := queue_of_route(getattr(task, "queue", None)):
        return name
    default = str(app.conf.task_default_queue)
    # A copy: a look-up adds the queue that it names, and a worker would then consume it.
    router = app.amqp.Router(app.amqp.Queues(list(app.amqp.queues.values())))
    try:
        route = router.route({}, task.name, args=(), kwargs={})
    except Exception:  # noqa: BLE001 - the user's own router, which may look at the arguments
        return default
    return queue_of_route(route.get("queue")) or default


def max_retries_by_queue(app: Any) -> dict[str, list[int | None]]:
    """By queue, in Celery's name, the `max_retries` of its `VisibilityTask`s."""
    limits: dict[str, list[int | None]] = {}
    for task in app.tasks.values():
        if hasattr(task, "error_visibility_timeout"):  # only a `VisibilityTask` has it
            limits.setdefault(queue_of_task(app, task), []).append(task.max_retries)
    return limits
