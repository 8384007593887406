"""Ends are measured once each, which costs nothing where nobody listens."""

from __future__ import annotations

import pytest
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery import endings
from celery_sqs_visibility.delivery.endings import measure_end, measure_run, measure_settlement
from celery_sqs_visibility.events import DeliveryEnded, SettlementEnded, subscribe

NOW = 1010.0


@pytest.fixture
def held():
    return delivery(sqs_queue(), now=1000.0, timeout=120)


@pytest.fixture
def heard():
    heard = []
    ends = [subscribe(heard.append, kind) for kind in (DeliveryEnded, SettlementEnded)]
    yield heard
    for end in ends:
        end()


def test_durations_are_from_the_receive_the_start_and_the_settlement(held, heard):
    held.began, held.settled_at = 1004.0, NOW
    measure_end(held, Delete(), NOW)
    measure_settlement(held, NOW + 0.5)
    assert heard == [DeliveryEnded(held.facts, "succeeded", 10.0, 6.0), SettlementEnded(held.facts, 0.5)]


def test_a_run_that_was_acknowledged_when_it_began_is_told_at_its_end(held, heard):
    held.began, held.acknowledged_early = 1004.0, True
    measure_end(held, Delete(), 1004.0)
    assert heard == []
    held.outcome = "failed"
    measure_run(held, 1500.0)  # long after its deadline, which is of no interest any more
    assert heard == [DeliveryEnded(held.facts, "failed", 500.0, 496.0)]


def test_where_nobody_listens_nothing_is_made(held, monkeypatch):
    monkeypatch.setattr(endings, "emit", lambda event: pytest.fail(f"{event} is made"))
    held.settled_at = NOW
    measure_end(held, Delete(), NOW)
    measure_settlement(held, NOW)
    measure_run(held, NOW)
