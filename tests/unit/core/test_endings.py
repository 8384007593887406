"""Every delivery has one outcome, and a message comes back when its settlement says."""

from __future__ import annotations

import pytest
from support import factories
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.endings import OUTCOMES, outcome_of, return_of
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Purpose, Why
from celery_sqs_visibility.events import Hidden, Parked, Released

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
