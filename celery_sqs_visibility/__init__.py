"""Amazon SQS as a first-class broker for Celery.

This module is the face. It is imported wherever kombu is (see `celery_sqs_visibility.alias`), producers
included, so a name is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqs_visibility.errors import *
    from celery_sqs_visibility.events import *
    from celery_sqs_visibility.policy.retry_delays import ExponentialBackoff
    from celery_sqs_visibility.publish import publish_batch
    from celery_sqs_visibility.signals import message_lost
    from celery_sqs_visibility.task.base import VisibilityTask
    from celery_sqs_visibility.task.context import SQSDelivery
    from celery_sqs_visibility.worker.install import Transport

__all__ = [
    "AccessDeniedError",
    "ClockSkewError",
    "CredentialsRefusedError",
    "DeadLettered",
    "Deleted",
    "DeliveryEvent",
    "Event",
    "ExclusiveKeyError",
    "ExponentialBackoff",
    "Extended",
    "Facts",
    "Failed",
    "Finished",
    "FinishedBefore",
    "Hidden",
    "Lost",
    "OptionError",
    "OverLimitError",
    "Parked",
    "PublishError",
    "PublishFailure",
    "QueueDoesNotExistError",
    "ReceiptHandleInvalidError",
    "Received",
    "RefusedError",
    "Released",
    "Renewed",
    "RequestRefusedError",
    "SQSDelivery",
    "SQSError",
    "SQSRequest",
    "SQSVisibilityError",
    "Started",
    "StoreError",
    "Superseded",
    "TLSError",
    "ThrottledError",
    "TooLargeError",
    "Transport",
    "UnavailableError",
    "Unreadable",
    "UnreadableError",
    "UnrecognizedResponseError",
    "UnroutableError",
    "VisibilityLostError",
    "VisibilityTask",
    "message_lost",
    "publish_batch",
    "subscribe",
]

__version__ = "0.1.0"

_HOMES = {
    "ExponentialBackoff": "policy.retry_delays",
    "PublishFailure": "errors",
    "SQSDelivery": "task.context",
    "Transport": "worker.install",
    "VisibilityTask": "task.base",
    "message_lost": "signals",
    "publish_batch": "publish",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "errors" if name.endswith("Error") else "events")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
