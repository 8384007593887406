"""Celery-style signals of the worker's main process."""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

from celery_sqs_visibility.events import DeliveryEvent, Lost, subscribe, subscribed

#: A message's visibility lapsed while this worker held it, or SQS refused its handle: another worker may have
#: it. The sender is the task's name; arguments are `delivery` (its `events.Facts`) and `reason`. Sent in the
#: thread that noticed, so be quick.
message_lost: Any = Signal(name="message_lost", providing_args={"delivery", "reason"})


def send_signals() -> None:
    """Send them from now on; harmless if they are sent already."""
    if not subscribed(_on_event):
        subscribe(_on_event)


def _on_event(event: DeliveryEvent) -> None:
    if isinstance(event, Lost):
        message_lost.send(sender=event.delivery.task, delivery=event.delivery, reason=event.reason)
