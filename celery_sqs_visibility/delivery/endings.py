"""Ends of deliveries: the events of messages that come back, and the outcomes that metrics count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import (
    DeadLetter,
    Delete,
    Hide,
    Lapse,
    Park,
    Release,
    Renew,
    Settlement,
    Split,
)
from celery_sqs_visibility.events import DeliveryEvent, Hidden, Parked, Released, emit
from celery_sqs_visibility.measurements import DeliveryEnded, SettlementEnded
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: The outcome of a message by its settlement; of a deleted one the request knows more.
OUTCOMES: Final[Mapping[type[Settlement], str]] = {
    Hide: "retried",
    Lapse: "retried",
    DeadLetter: "failed",
    Release: "released",
    Park: "delayed",
    Renew: "delayed",
    Split: "discarded",  # its records are messages of their own
}


def return_of(delivery: Delivery, settlement: Settlement, now: float) -> tuple[DeliveryEvent, float]:
    """The event of a message that is settled so at `now` and comes back, and when it is visible again.

    Both instants are monotonic.
    """
    facts = delivery.facts
    match settlement:
        case Hide(seconds, kept):
            return Hidden(facts, seconds, kept), now + seconds
        case Park(seconds):
            return Parked(facts, seconds), now + seconds
        case Lapse():
            return Hidden(facts, max(0.0, delivery.deadline - now)), delivery.deadline
        case Release():
            return Released(facts), now
        case Delete() | DeadLetter() | Renew() | Split():
            raise AssertionError("its message does not come back")


def outcome_of(delivery: Delivery, settlement: Settlement, now: float) -> str:
    """The outcome of a delivery that is settled so at that monotonic instant.

    A message that is deleted without having run was revoked, has expired, or had been finished before. One
    that is given up fails once: if it is kept, or its dead letter refused, it comes back to be given back.
    """
    if delivery.lost or delivery.deadline <= now:
        return "lost"
    if delivery.end_of_given_up is not None:
        return delivery.end_of_given_up
    if isinstance(settlement, Delete):
        return delivery.outcome or ("succeeded" if delivery.started else "discarded")
    if delivery.outcome == "released":  # though it is hidden for a while
        return delivery.outcome
    return OUTCOMES[type(settlement)]


def measure_end(delivery: Delivery, settlement: Settlement, now: float) -> None:
    """It is settled, at that monotonic instant. Any thread."""
    if DeliveryEnded.is_wanted():
        delivery.settled_at = now
        if not (delivery.acknowledged_early and delivery.started):  # else its run has only begun
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
