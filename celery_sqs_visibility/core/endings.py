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
from celery_sqs_visibility.events import DeliveryEvent, Hidden, Parked, Released

#: The outcome of a message by why it is hidden, or what takes its place.
OUTCOMES: Final[Mapping[Why | Purpose, str]] = {
    Why.RETRIED: "retried",
    Why.KEPT: "retried",
    Why.PARKED: "delayed",
    Why.RATE: "delayed",
    Why.KEY: "delayed",
    Why.PAUSE: "delayed",
    Why.RELEASED: "released",
    Purpose.DEAD_LETTER: "failed",
    Purpose.RENEWAL: "delayed",
    Purpose.RECORDS: "discarded",  # they are messages of their own
}

#: What a message waits for, as its event tells.
CAUSES: Final[Mapping[Why, str]] = {
    Why.PARKED: "eta",
    Why.RATE: "rate",
    Why.KEY: "key",
    Why.PAUSE: "pause",
}


class Ending(NamedTuple):
    """How a delivery ended that is not deleted.

    Attributes:
        event: to be emitted.
        visible_at: the monotonic instant at which its message is visible again, where it is expected.
    """

    event: DeliveryEvent
    visible_at: float | None = None


def return_of(delivery: Delivery, settlement: Direct, now: float) -> Ending:
    """How a message ends that is settled so at that monotonic instant, and comes back."""
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
    """The outcome of a delivery that is settled so at that monotonic instant.

    A message that is deleted without having run was revoked, has expired, or had been finished before. One
    that is given up fails once: if it is kept, or its dead letter refused, it comes back to be given back.
    """
    if delivery.lost or delivery.deadline <= now:
        return "lost"
    if delivery.end_of_given_up is not None:
        return delivery.end_of_given_up
    match settlement:
        case Delete():  # the request of its run knows more
            return delivery.outcome or ("succeeded" if delivery.started else "discarded")
        case Lapse():
            return OUTCOMES[Why.RETRIED]
        case Hide():
            return OUTCOMES[settlement.why]
        case Forward():
            return OUTCOMES[settlement.purpose]
