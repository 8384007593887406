"""Every delivery has one outcome, and a message comes back when its settlement says."""

import pytest
from support import factories
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.endings import (
    OUTCOMES,
    end_of,
    outcome_of,
    return_of,
    run_end_of,
    settlement_end_of,
)
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Purpose, Why
from celery_sqs_visibility.events import DeliveryEnded, Hidden, Parked, Released, SettlementEnded

NOW = 1010.0


@pytest.fixture
def held():
    return delivery(sqs_queue(), now=1000.0, timeout=120)


def test_every_settlement_has_an_outcome():
    assert OUTCOMES.keys() == {*Why, *Purpose}


@pytest.mark.parametrize(
    ("settlement", "began", "told", "outcome"),
    [
        (Delete(), NOW, None, "succeeded"),
        (Delete(), NOW, "failed", "failed"),
        (Delete(), NOW, "skipped", "skipped"),
        (Delete(), None, None, "discarded"),
        (Hide(5), NOW, "failed", "retried"),
        (Hide(5, Why.RELEASED), None, None, "released"),  # by a poll that came after the stop
        (Lapse(), NOW, None, "retried"),
        (RELEASE, None, None, "released"),
        (Hide(5, Why.PARKED), None, None, "delayed"),
        (Hide(5, Why.KEY), None, None, "delayed"),
        (factories.renewal(), None, None, "delayed"),
        (factories.split(()), None, None, "discarded"),
        (factories.letter(), NOW, None, "failed"),
    ],
)
def test_the_outcome_is_the_settlements_and_of_a_deletion_the_requests(
    held, settlement, began, told, outcome
):
    held.began, held.outcome = began, told
    assert outcome_of(held, settlement, NOW) == outcome


@pytest.mark.parametrize("settlement", [Hide(3600, Why.KEPT), factories.letter(), RELEASE])
@pytest.mark.parametrize("given_up", ["failed", "released"])
def test_what_is_given_up_fails_once_whatever_comes_of_it(held, settlement, given_up):
    held.began, held.end_of_given_up = NOW, given_up
    assert outcome_of(held, settlement, NOW) == given_up


def test_what_was_lost_has_no_other_outcome(held):
    held.began = NOW
    assert outcome_of(held, Delete(), held.deadline) == "lost"
    held.lost = True
    assert outcome_of(held, Delete(), NOW) == "lost"


@pytest.mark.parametrize(
    ("settlement", "event", "visible_at"),
    [
        (Hide(5), lambda facts: Hidden(facts, 5), NOW + 5),
        (Hide(5, Why.KEPT), lambda facts: Hidden(facts, 5, kept=True), NOW + 5),
        (Hide(5, Why.RELEASED), lambda facts: Released(facts, 5), NOW + 5),
        (Hide(7, Why.PARKED), lambda facts: Parked(facts, 7, "eta"), NOW + 7),
        (Hide(7, Why.KEY), lambda facts: Parked(facts, 7, "key"), NOW + 7),
        (Lapse(), lambda facts: Hidden(facts, 110), 1120.0),
        (RELEASE, Released, NOW),
    ],
)
def test_a_message_that_comes_back_is_visible_when_its_settlement_says(held, settlement, event, visible_at):
    assert return_of(held, settlement, NOW) == (event(held.facts), visible_at)


def test_what_lapsed_before_it_was_settled_is_visible_since_then(held):
    late = held.deadline + 1
    assert return_of(held, Lapse(), late) == (Hidden(held.facts, 0.0), held.deadline)


def test_durations_are_from_the_receive_the_start_and_the_settlement(held):
    assert settlement_end_of(held, NOW) is None
    held.began, held.settled_at = 1004.0, NOW
    assert end_of(held, Delete(), NOW) == DeliveryEnded(held.facts, "succeeded", 10.0, 6.0)
    assert settlement_end_of(held, NOW + 0.5) == SettlementEnded(held.facts, 0.5)


def test_a_run_that_was_acknowledged_when_it_began_is_told_at_its_end(held):
    held.acknowledged_early = True
    assert end_of(held, Delete(), 1004.0) == DeliveryEnded(held.facts, "discarded", 4.0, None)
    held.began = 1004.0
    assert end_of(held, Delete(), 1004.0) is None
    assert run_end_of(held, 1005.0) == DeliveryEnded(held.facts, "succeeded", 5.0, 1.0)
    held.outcome = "failed"
    told = run_end_of(held, 1500.0)  # long after its deadline, which is of no interest any more
    assert told == DeliveryEnded(held.facts, "failed", 500.0, 496.0)
