"""How deliveries end: the events of messages that come back, and the outcomes that metrics count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.settlements import (
    Delete,
    Direct,
    Forward,
    Hide,
    Lapse,
    Purpose,
    Settlement,
    Why,
)
from celery_sqs_visibility.events import (
    DeliveryEnded,
    DeliveryEvent,
    Hidden,
    Parked,
    Released,
    SettlementEnded,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

#: The outcome of a message by the reason why it is hidden, or by the purpose of its copies.
OUTCOMES: Final[Mapping[Why | Purpose, str]] = {
    Why.RETRIED: "retried",
    Why.KEPT: "retried",
    Why.PARKED: "delayed",
    Why.RATE: "delayed",
    Why.KEY: "delayed",
    Why.PAUSE: "delayed",
    Why.BRAKE: "delayed",
    Why.RELEASED: "released",
    Purpose.DEAD_LETTER: "failed",
    Purpose.RENEWAL: "delayed",
    Purpose.RECORDS: "discarded",  # they are messages of their own
}

#: What a message waits for, as the event names it.
CAUSES: Final[Mapping[Why, str]] = {
    Why.PARKED: "eta",
    Why.RATE: "rate",
    Why.KEY: "key",
    Why.PAUSE: "pause",
    Why.BRAKE: "brake",
}


class Ending(NamedTuple):
    """The end of a delivery that is not deleted.

    Attributes:
        event: the event to emit.
        visible_at: the monotonic instant at which the message is visible again; `None` if it isn't expected.
    """

    event: DeliveryEvent
    visible_at: float | None = None


def return_of(delivery: Delivery, settlement: Direct, now: float) -> Ending:
    """The end of a message that is settled at that monotonic instant and comes back."""
    facts = delivery.facts
    match settlement:
        case Hide(seconds, why) if why in CAUSES:
            return Ending(Parked(facts, seconds, CAUSES[why]), now + seconds)
        case Hide(seconds, Why.RELEASED):
            return Ending(Released(facts, seconds), now + seconds)
        case Hide(seconds, why):
            return Ending(Hidden(facts, seconds, why is Why.KEPT), now + seconds)
        case Lapse():
            return Ending(Hidden(facts, max(0.0, delivery.deadline - now)), delivery.deadline)
        case Delete():
            raise AssertionError("its message does not come back")


def outcome_of(delivery: Delivery, settlement: Settlement, now: float) -> str:
    """The outcome of a delivery that is settled at that monotonic instant.

    A message that is deleted without having run was revoked, has expired, or had been finished before. A
    message that is given up counts as failed once: if it is kept or its dead letter is refused, its later
    receives end as "released".
    """
    if delivery.lost_by(now):
        return "lost"
    if delivery.end_of_given_up is not None:
        return delivery.end_of_given_up
    match settlement:
        case Delete():  # "outcome" is what the request of its run reports
            return delivery.outcome or ("succeeded" if delivery.started else "discarded")
        case Lapse():
            return OUTCOMES[Why.RETRIED]
        case Hide():
            return OUTCOMES[settlement.why]
        case Forward():
            return OUTCOMES[settlement.purpose]


def end_of(delivery: Delivery, settlement: Settlement, now: float) -> DeliveryEnded | None:
    """The end of a delivery that is settled at that instant; `None` if its run goes on."""
    if delivery.acknowledged_early and delivery.started:
        return None
    return _ended(delivery, outcome_of(delivery, settlement, now), now)


def run_end_of(delivery: Delivery, now: float) -> DeliveryEnded:
    """The end of a run whose message was settled when it began."""
    return _ended(delivery, delivery.outcome or "succeeded", now)


def _ended(delivery: Delivery, outcome: str, now: float) -> DeliveryEnded:
    received = delivery.horizon - VISIBILITY_HORIZON_SECONDS
    ran = None if delivery.began is None else now - delivery.began
    return DeliveryEnded(delivery.facts, outcome, now - received, ran)


def settlement_end_of(delivery: Delivery, now: float) -> SettlementEnded | None:
    """The end of a settlement that SQS was told of at that instant."""
    settled_at = delivery.settled_at
    return None if settled_at is None else SettlementEnded(delivery.facts, max(0.0, now - settled_at))
