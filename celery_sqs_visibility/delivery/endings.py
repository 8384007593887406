"""Measurements of how deliveries ended, made only where somebody wants them."""

from __future__ import annotations

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.endings import outcome_of
from celery_sqs_visibility.core.settlements import Settlement
from celery_sqs_visibility.events import DeliveryEnded, SettlementEnded, emit
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS


def measure_end(delivery: Delivery, settlement: Settlement, now: float) -> None:
    """It is settled, at that monotonic instant. Any thread."""
    # Else its run has only begun:
    if DeliveryEnded.is_wanted() and not (delivery.acknowledged_early and delivery.started):
        _tell(delivery, outcome_of(delivery, settlement, now), now)


def measure_run(delivery: Delivery, now: float) -> None:
    """Its run has ended, which was settled when it began. Any thread."""
    if DeliveryEnded.is_wanted():
        _tell(delivery, delivery.outcome or "succeeded", now)


def _tell(delivery: Delivery, outcome: str, now: float) -> None:
    received = delivery.horizon - VISIBILITY_HORIZON_SECONDS
    ran = None if delivery.began is None else now - delivery.began
    emit(DeliveryEnded(delivery.facts, outcome, now - received, ran))


def measure_settlement(delivery: Delivery, now: float) -> None:
    """SQS was told how it ended, at that monotonic instant. A thread of the pump."""
    if delivery.settled_at is not None and SettlementEnded.is_wanted():
        emit(SettlementEnded(delivery.facts, max(0.0, now - delivery.settled_at)))
