"""Amazon SQS as a first-class broker for Celery.

This module is the public interface. It is imported wherever kombu is (see `celery_sqs_visibility.alias`),
even in producers, so names are imported from their modules on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqs_visibility.errors import *
    from celery_sqs_visibility.events import *
    from celery_sqs_visibility.json_logs import JSONFormatter, log_json
    from celery_sqs_visibility.policy.retries import ExponentialBackoff
    from celery_sqs_visibility.policy.typed_options import TaskSettings, TransportOptions
    from celery_sqs_visibility.publish import apublish, publish_batch
    from celery_sqs_visibility.serverless.handler import lambda_handler
    from celery_sqs_visibility.signals import horizon_near, message_lost
    from celery_sqs_visibility.task.base import VisibilityTask
    from celery_sqs_visibility.task.context import SQSDelivery
    from celery_sqs_visibility.transport.aws_events import S3Object, s3_object
    from celery_sqs_visibility.transport.task_message import task_id_for, task_message
    from celery_sqs_visibility.worker import Transport

__all__ = [
    "AccessDeniedError",
    "AnswerLostError",
    "ClockSkewError",
    "CommandNotSentError",
    "CredentialsRefusedError",
    "DeadLettered",
    "Deleted",
    "DeliveryEvent",
    "DeliveryFacts",
    "ETATooFarError",
    "Event",
    "EventsDropped",
    "ExclusiveKeyError",
    "ExponentialBackoff",
    "Extended",
    "Failed",
    "Finished",
    "FinishedBefore",
    "Hidden",
    "HorizonNear",
    "InactivityError",
    "InvalidIdError",
    "JSONFormatter",
    "Lost",
    "MessageTooLargeError",
    "ObjectDoesNotExistError",
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
    "RemoteControlError",
    "Renewed",
    "RequestRefusedError",
    "S3Object",
    "SQSDelivery",
    "SQSError",
    "SQSRequest",
    "SQSVisibilityError",
    "Skipped",
    "Started",
    "StoreError",
    "StoreUnavailableError",
    "Superseded",
    "TLSError",
    "TaskSettings",
    "ThrottledError",
    "TooLargeError",
    "Transport",
    "TransportOptions",
    "UnavailableError",
    "UnreachableError",
    "Unreadable",
    "UnreadableError",
    "UnrecognizedResponseError",
    "UnroutableError",
    "VisibilityLostError",
    "VisibilityTask",
    "apublish",
    "horizon_near",
    "lambda_handler",
    "log_json",
    "message_lost",
    "publish_batch",
    "s3_object",
    "subscribe",
    "task_id_for",
    "task_message",
]

__version__ = "0.1.0"

_HOMES = {
    "ExponentialBackoff": "policy.retries",
    "JSONFormatter": "json_logs",
    "PublishFailure": "errors",
    "S3Object": "transport.aws_events",
    "SQSDelivery": "task.context",
    "TaskSettings": "policy.typed_options",
    "Transport": "worker",
    "TransportOptions": "policy.typed_options",
    "VisibilityTask": "task.base",
    "apublish": "publish",
    "horizon_near": "signals",
    "lambda_handler": "serverless.handler",
    "log_json": "json_logs",
    "message_lost": "signals",
    "publish_batch": "publish",
    "s3_object": "transport.aws_events",
    "task_id_for": "transport.task_message",
    "task_message": "transport.task_message",
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
