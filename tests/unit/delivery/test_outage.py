"""Outage is told when it begins and when it is over, not at every attempt."""

from __future__ import annotations

import logging

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.delivery.outage import STEADY, Outage
from celery_sqs_visibility.errors import ThrottledError, UnavailableError


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def outage(clock):
    return Outage(logging.getLogger("test"), "cannot knit", "knits", "q", clock)


@pytest.fixture
def told(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_where_there_is_none_nothing_is_told(outage, told, clock):
    outage.worked(clock.monotonic())
    assert told() == []


def test_it_is_told_once_for_each_kind_of_error_and_its_end_once(outage, told, clock, caplog):
    for error in (
        ThrottledError("slow"),
        ThrottledError("slow"),
        UnavailableError("gone"),
        ThrottledError("slow"),
    ):
        outage.failed(error)
    outage.worked(clock.monotonic())
    outage.worked(clock.monotonic())
    assert told() == [
        "cannot knit and will try again: slow (queue=q)",
        "cannot knit and will try again: gone (queue=q)",
        "knits again, after 4 failures (queue=q)",
    ]
    assert {record.queue for record in caplog.records} == {"q"}


def test_trouble_that_comes_and_goes_is_over_when_it_stays_away(outage, told, clock):
    for _ in range(100):
        outage.failed(ThrottledError("slow"))
        outage.worked(clock.monotonic())
        clock.advance(STEADY / 20)
    assert len(told()) == 3
    clock.advance(STEADY)
    outage.worked(clock.monotonic())
    assert told()[-1].startswith("knits again, after 99 failures")


def test_trouble_that_comes_back_late_is_told_as_the_first_was(outage, told, clock):
    for _ in range(2):
        outage.failed(ThrottledError("slow"))
        outage.worked(clock.monotonic())
        clock.advance(STEADY + 1)
    assert len(told()) == 4


def test_what_was_asked_before_it_began_tells_nothing_of_its_end(outage, told, clock):
    since = clock.monotonic()
    clock.advance(1)
    outage.failed(ThrottledError("slow"))
    clock.advance(1)
    outage.worked(since)
    outage.failed(ThrottledError("slow"))
    assert len(told()) == 1
    outage.worked(clock.monotonic())
    assert told()[-1].startswith("knits again, after 2 failures")
