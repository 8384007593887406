"""Which tasks of a worker take messages that are not Celery's. Read once, before the worker consumes."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.event_routes import MESSAGE, EventRoute, EventRoutes, parse_sqs_event
from celery_sqs_visibility.policy.option_parsers import CALLABLE, imported
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.transport.broker_context import BrokerContext


def take_events(app: Celery[Any], context: BrokerContext) -> None:
    """Have the worker's receivers make tasks of events, if any task takes some or there is an adapter.

    Raises:
        ImproperlyConfigured: two tasks take the same events, or the adapter cannot be imported.
    """
    try:
        routes = EventRoutes(_routes(app))
        adapter = _adapter(context.options.message_adapter)
    except ValueError as error:
        raise shown_in_one_line(ImproperlyConfigured(str(error))) from None
    if not routes and adapter is None:
        return
    from celery_sqs_visibility.transport.event_messages import EventMessages  # noqa: PLC0415 - seldom needed

    decode = context.decode_message
    context.decode_for_worker = EventMessages(routes, adapter, decode, context.attribute_names).decode


def _routes(app: Celery[Any]) -> list[EventRoute]:
    return [
        EventRoute(pattern, task.name, per_message=task.sqs_event_per == MESSAGE)
        for task in app.tasks.values()
        if isinstance(task, VisibilityTask)
        for pattern in parse_sqs_event("sqs_event", task.sqs_event)
    ]


def _adapter(path: str | None) -> Any:
    if path is None:
        return None
    adapter = imported("message_adapter", path, CALLABLE)
    if not callable(adapter):
        raise OptionError(f"expected message_adapter to be {CALLABLE}, got {path!r}, which is {adapter!r}")
    return adapter
