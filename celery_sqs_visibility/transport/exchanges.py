"""Exchanges, which SQS does not have: direct ones are a table in each process, fanout ones SNS topics.

Others are refused, and fanout ones without SNS: a message would reach only the queues that its publisher has
declared. Other processes would get nothing, and no error would say so.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Raise `UnroutableError` if other processes would not get messages that are published to the exchange.

    Not of Celery's own exchanges, to which Celery publishes unasked. `supports_fanout` is the option.
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
    """A direct exchange, whose bindings are those of this connection, and of this process's apps."""

    def lookup(self, table: Any, exchange: str, routing_key: str, default: str | None) -> Any:
        """The names of the queues that get the message; kombu takes `default` for none, unless it is `None`.

        Raises:
            UnroutableError: nobody would get it. Not on Celery's own exchanges: nobody listens there.
        """
        queues = super().lookup(table, exchange, routing_key, default)
        if queues or default is not None:
            return queues
        queues = _bound_by_apps(exchange, routing_key)
        if not queues and not use_here(exchange):
            raise UnroutableError(UNBOUND.format(exchange, routing_key))
        return queues


def _bound_by_apps(exchange: str, routing_key: str) -> list[str]:
    """The names of the queues that the apps of this process bind to a direct exchange, by their settings.

    An AMQP broker knows these bindings from whoever declares them; Celery publishes without declaring a queue
    where a route names an exchange (celery/app/amqp.py: `_create_task_sender`).
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
    """Celery's use of an exchange of its own, as this process's apps name theirs; `None` of any other."""
    return use_of(exchange, (str(app.conf.event_exchange) for app in configured_apps()))


def is_an_apps_fanout(exchange: str) -> bool:
    """Whether it is the fanout exchange of a queue in the settings of an app of this process."""
    queues = [queue for app in configured_apps() for queue in app.amqp.queues.values()]
    bound = [each.exchange for queue in queues for each in (queue, *queue.bindings)]
    return any(each.name == exchange and each.type == "fanout" for each in bound if each is not None)


def configured_apps() -> Iterator[Any]:
    """The apps of this process whose settings have been read."""
    yield from (app for app in active_apps() if app.configured)
