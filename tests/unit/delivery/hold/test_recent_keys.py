"""Memory has bounds."""

from __future__ import annotations

from support.clock import FakeClock

from celery_sqs_visibility.delivery.hold.redelivery import RecentKeys


def test_a_key_is_new_once_and_the_oldest_is_forgotten():
    remembered = RecentKeys(2)
    assert [remembered.add(key) for key in "abac"] == [True, True, False, True]
    assert "b" not in remembered
    assert "a" in remembered


def test_what_is_old_is_forgotten_when_something_else_is_remembered():
    clock = FakeClock()
    remembered = RecentKeys(100, 60, clock)
    remembered.add("a")
    remembered.add("far", until=clock.monotonic() + 600)
    clock.advance(61)
    remembered.add("b")
    assert "a" not in remembered
    assert "far" in remembered
    clock.advance(540)
    remembered.add("c")
    assert len(remembered) == 1
