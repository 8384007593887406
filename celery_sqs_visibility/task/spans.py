"""Attributes about the task's message, for a tracer's current span. In the process that runs the task.

The Celery instrumentations of OpenTelemetry, Sentry and ddtrace start the spans; this module starts none, and
imports no library.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.task.context import DeliveryContext, sqs_delivery

logger = logging.getLogger(__name__)

#: OpenTelemetry's name of SQS, in its semantic conventions for messaging.
SYSTEM: Final = "aws_sqs"

#: The conventions name it only for Azure: `messaging.servicebus.message.delivery_count`.
RECEIVE_COUNT: Final = "messaging.aws_sqs.message.receive_count"

#: The message's id again: OpenTelemetry's instrumentation writes the task's id to `messaging.message.id`
#: (opentelemetry/instrumentation/celery/utils.py: `set_attributes_from_context`).
MESSAGE_ID: Final = "messaging.aws_sqs.message.id"
ANY_MESSAGE_ID: Final = "messaging.message.id"

SENTRYS_INTEGRATION: Final = "celery"


def describe_span(request: DeliveryContext) -> None:
    """Add queue, message and receive count to the current spans, if any. Never raises."""
    if sys.modules.keys().isdisjoint(_TRACERS):
        return
    for library, tell in _TRACERS.items():
        if (module := sys.modules.get(library)) is not None:
            try:
                tell(module, attributes_of(request))
            except Exception:  # noqa: BLE001 - missing attributes are no reason to fail a run
                log_safely(logger.debug, "the span of %s has no facts of its message", library, exc_info=True)


def attributes_of(request: DeliveryContext) -> dict[str, Any]:
    """The attributes of a run's span."""
    sqs = sqs_delivery(request)
    info = (request.properties or {}).get("delivery_info") or {}
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": sqs["queue"],
        ANY_MESSAGE_ID: sqs["message_id"],
        MESSAGE_ID: sqs["message_id"],
        RECEIVE_COUNT: sqs["receive_count"],
        "aws.sqs.queue.url": info.get("sqs_queue", ""),
    }


def _tell_opentelemetry(trace: Any, attributes: dict[str, Any]) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes(attributes)


def _tell_sentry(sdk: Any, attributes: dict[str, Any]) -> None:
    """Leave the task's id to the span, as the publisher's span has it. Errors get a context."""
    if sdk.get_client().get_integration(SENTRYS_INTEGRATION) is None:
        return  # the integration has no scope for this run
    del attributes[ANY_MESSAGE_ID]
    sdk.get_isolation_scope().set_context("Amazon SQS", attributes)
    if (span := sdk.get_current_span()) is not None:
        tell = getattr(span, "set_attribute", None) or span.set_data
        for name, value in attributes.items():
            tell(name, value)


def _tell_ddtrace(trace: Any, attributes: dict[str, Any]) -> None:
    if (span := trace.tracer.current_span()) is not None:
        for name, value in attributes.items():
            span.set_tag(name, value)


_TRACERS: Final = {
    "opentelemetry.trace": _tell_opentelemetry,
    "sentry_sdk": _tell_sentry,
    "ddtrace.trace": _tell_ddtrace,
}
