"""Amazon SQS as a first-class broker for Celery.

This module is the face: names are fetched from where they live when they are first used, because it is
imported wherever kombu is (see `celery_sqs_visibility.alias`), producers included.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.publish.sender import PublishError
    from celery_sqs_visibility.events import subscribe
    from celery_sqs_visibility.policy.retry_delays import ExponentialBackoff
    from celery_sqs_visibility.publish import publish_batch
    from celery_sqs_visibility.signals import message_lost
    from celery_sqs_visibility.task.base import VisibilityTask
    from celery_sqs_visibility.visibility import VisibilityLostError
    from celery_sqs_visibility.worker.install import Transport

__all__ = [
    "ExponentialBackoff",
    "PublishError",
    "Transport",
    "VisibilityLostError",
    "VisibilityTask",
    "message_lost",
    "publish_batch",
    "subscribe",
]

__version__ = "0.1.0"

_HOMES = {
    "ExponentialBackoff": "celery_sqs_visibility.policy.retry_delays",
    "PublishError": "celery_sqs_visibility.delivery.publish.sender",
    "Transport": "celery_sqs_visibility.worker.install",
    "VisibilityLostError": "celery_sqs_visibility.visibility",
    "VisibilityTask": "celery_sqs_visibility.task.base",
    "message_lost": "celery_sqs_visibility.signals",
    "publish_batch": "celery_sqs_visibility.publish",
    "subscribe": "celery_sqs_visibility.events",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
