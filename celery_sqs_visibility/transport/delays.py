"""Delay of a published message in SQS: an explicit one, or the time until its ETA."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import ETATooFarError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import NEVER, DelayLimits, is_never, kept_delay
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

logger = logging.getLogger(__name__)

#: The properties that give a delay, as in kombu.
DELAY_PROPERTIES: Final = ("delay_seconds", "DelaySeconds")

NOT_KEPT: Final = "delay_seconds=%r of a message to %r is not kept: %s; a countdown waits in SQS, too"


class Delay(NamedTuple):
    """`delay` and `visible_at` of an `OutgoingMessage`."""

    seconds: int | None = None
    visible_at: float | None = None


def delay_of(properties: Mapping[str, Any], eta: float | None, queue: Queue, limits: DelayLimits) -> Delay:
    """The delay of a message that is published now. An explicit delay overrides that of the ETA.

    Args:
        properties: the message's.
        eta: seconds since the epoch, or `None`.
        queue: FIFO queues cannot delay single messages.
        limits: of the queue.

    Raises:
        ETATooFarError: SQS would delete the message before its time.
    """
    wait = None if eta is None else eta - SYSTEM_CLOCK.wall()
    if wait is not None and is_never(wait):
        raise ETATooFarError(f"an ETA in {wait:,.0f} s, for queue {queue.name!r}, is {NEVER}")
    if wait is not None and (reason := limits.why_not(wait, fifo=queue.fifo)) is not None:
        raise ETATooFarError(f"an ETA in {wait:,.0f} s is too far for queue {queue.name!r}: {reason}")
    if queue.fifo:
        return without_delay(properties, queue.name, "SQS delays no single message of a FIFO queue")
    given = _given_delay(properties, queue.name)
    if (reason := limits.why_not_delayed(given)) is not None:
        raise ETATooFarError(f"delay_seconds={given} is too long for queue {queue.name!r}: {reason}")
    if given is not None or eta is None or wait is None:
        return Delay(given)
    return Delay(limits.delay_for(wait), eta - limits.sleep)


def headers_with_eta(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a published message with its ETA: the headers, or in Celery's protocol 1 a JSON body.

    The ETA in a body only makes a delay: workers leave the body to Celery.
    """
    headers: Mapping[str, Any] = message.get("headers") or {}
    return headers if "task" in headers else fields_of_body(message, '"eta"') or headers


def fields_of_body(message: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """The fields in the JSON body of a message of protocol 1; empty where `wanted` is not in its text."""
    if message.get("content-type") != "application/json":
        return {}
    try:
        body = message["body"]
        if message.get("properties", {}).get("body_encoding") == "base64":
            body = base64.b64decode(body).decode()
        fields = json.loads(body) if wanted in body and len(body) <= MESSAGE_BYTES else None
    except (KeyError, TypeError, ValueError, RecursionError):  # no task of Celery's, or a compressed one
        return {}
    return fields if isinstance(fields, dict) else {}


def eta_of(headers: Mapping[str, Any]) -> float | None:
    """The ETA in seconds since the epoch; `None` without one that Celery understands.

    Celery's own functions, which are used here, take a naive ETA for UTC, despite `timezone` and `enable_utc`
    (celery/worker/request.py: `Request.__init__`).
    """
    eta = headers.get("eta")
    if not eta or not isinstance(eta, (str, datetime)):
        return None
    try:
        instant = maybe_iso8601(eta)
        return None if instant is None else maybe_make_aware(instant).timestamp()
    except Exception as error:
        if passes(error):
            raise
        return None  # the parser may raise anything; `worker.validation` refuses the message


def without_delay(properties: Mapping[str, Any], name: str, reason: str) -> Delay:
    """No delay, with a warning if the message has one: it cannot be delayed on that queue or topic."""
    if given := _written_delay(properties):
        logger.warning(NOT_KEPT, given, name, reason)
    return Delay()


def _given_delay(properties: Mapping[str, Any], queue: str) -> int | None:
    if (given := _written_delay(properties)) is None:
        return None
    delay, reason = kept_delay(given)
    if reason:
        logger.warning(NOT_KEPT, given, queue, reason)
    return delay


def _written_delay(properties: Mapping[str, Any]) -> Any:
    for name in DELAY_PROPERTIES:
        if (delay := properties.get(name)) is not None:
            return delay
    return None
