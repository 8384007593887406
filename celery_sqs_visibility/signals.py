"""`message_lost`, a signal as Celery's are. Apart from events.py, which does without Celery."""

from __future__ import annotations

from typing import Final

from celery.utils.dispatch import Signal

from celery_sqs_visibility.events import Lost, subscribe, subscribed

#: Another worker may have a message that this one holds: its visibility has lapsed, or SQS refused its
#: receipt handle. The sender is the task's name; arguments are `delivery` (its `Facts`) and `reason`. Sent in
#: the worker's main process, in the thread that noticed: be quick.
message_lost: Final = Signal(name="message_lost", providing_args=["delivery", "reason"])


def send_signals() -> None:
    """Send it from now on; harmless if it is sent already."""
    if not subscribed(_send):
        subscribe(_send, Lost)


def _send(event: Lost) -> None:
    message_lost.send(sender=event.delivery.task, delivery=event.delivery, reason=event.reason)
