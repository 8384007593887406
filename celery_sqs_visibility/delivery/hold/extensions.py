"""When a delivery is extended, by how long, and what the ledger says once that has been tried."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settlements import Settlement
from celery_sqs_visibility.policy.options import QueueOptions
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

#: A failed extension is tried again after this part of the time that is left,
RETRY_FRACTION: Final = 4

#: but not sooner than this.
RETRY_FLOOR_SECONDS: Final = 0.25


class ExtensionOutcome(NamedTuple):
    """What the ledger says of a delivery whose extension has returned.

    Attributes:
        held: whether it is still held, neither settled nor superseded meanwhile.
        waiting: the settlement that waited for the extension, to be carried out now.
    """

    held: bool
    waiting: Settlement | None


def extension_seconds(delivery: Delivery, options: QueueOptions, now: float) -> int:
    """Seconds to ask for, clamped to the horizon; 0 if it lapsed, or is hidden for longer already."""
    if delivery.at_horizon or delivery.deadline <= now:
        return 0
    seconds = options.visibility_timeout if options.heartbeat_interval else 0
    if delivery.requested_deadline:
        seconds = max(seconds, math.ceil(delivery.requested_deadline - now))
    seconds = min(seconds, int(delivery.horizon - HORIZON_MARGIN_SECONDS - now))
    return seconds if now + seconds > delivery.deadline else 0


def is_extended_again(delivery: Delivery, options: QueueOptions, now: float) -> bool:
    """Whether the heartbeat extends it before its deadline, though it does not now."""
    return bool(options.heartbeat_interval) and delivery.deadline > now and not delivery.at_horizon


def lateness(delivery: Delivery, options: QueueOptions, now: float) -> float:
    """Seconds since the instant by which it should have been extended; 0 before."""
    return max(0.0, now - (delivery.deadline - options.heartbeat_interval))


def next_try(delivery: Delivery, now: float) -> float:
    """The monotonic instant at which an extension that failed just now is tried again."""
    pause = max((delivery.deadline - now) / RETRY_FRACTION, RETRY_FLOOR_SECONDS)
    return min(now + pause, delivery.deadline)


def seconds_apart(options: QueueOptions) -> float:
    """Seconds before or after which a queue's deliveries are extended again, whichever is less.

    Extensions are an interval before the deadline, so the rest of the visibility timeout apart.
    """
    interval, timeout = options.heartbeat_interval, options.visibility_timeout
    return min(interval, timeout - interval) or timeout
