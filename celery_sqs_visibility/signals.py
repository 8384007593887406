"""The signals `message_lost` and `horizon_near`, separate from events.py, which does not need Celery."""

from __future__ import annotations

from typing import Final

from celery.utils.dispatch import Signal

from celery_sqs_visibility.events import HorizonNear, Lost, subscribe, subscribed

#: Another worker may have a message that this one holds: its visibility has lapsed, or SQS refused its
#: receipt handle. The sender is the task's name; arguments are `delivery` (its `DeliveryFacts`) and
#: `reason`. Sent in the worker's main process, in the thread that noticed: be quick.
message_lost: Final = Signal(name="message_lost", providing_args=["delivery", "reason"])

#: SQS's 12 hours end soon for a message whose task still runs: then SQS hands it out again. The sender is the
#: task's name; arguments are `delivery` (its `DeliveryFacts`) and `seconds`, which are left. Sent 15 minutes
#: before, once a delivery, in the supervisor's thread of the worker's main process: be quick.
horizon_near: Final = Signal(name="horizon_near", providing_args=["delivery", "seconds"])


def send_signals() -> None:
    """Start to send the signals. Idempotent."""
    if not subscribed(_send):
        subscribe(_send, Lost)
        subscribe(_send_horizon, HorizonNear)


def _send_horizon(event: HorizonNear) -> None:
    horizon_near.send(sender=event.delivery.task, delivery=event.delivery, seconds=event.seconds)


def _send(event: Lost) -> None:
    message_lost.send(sender=event.delivery.task, delivery=event.delivery, reason=event.reason)
