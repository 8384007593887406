"""Trouble is told when it begins and when it is over, not at every attempt."""

from __future__ import annotations

import logging

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.errors import Throttled, Unavailable
from celery_sqs_visibility.delivery.trouble import STEADY, Trouble


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def trouble(clock):
    return Trouble(logging.getLogger("test"), "cannot knit", "knits", "q", clock)


@pytest.fixture
def told(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_where_there_is_none_nothing_is_told(trouble, told, clock):
    trouble.worked(clock.monotonic())
    assert told() == []


def test_it_is_told_once_for_each_kind_of_error_and_its_end_once(trouble, told, clock, caplog):
    for error in (Throttled("slow"), Throttled("slow"), Unavailable("gone"), Throttled("slow")):
        trouble.failed(error)
    trouble.worked(clock.monotonic())
    trouble.worked(clock.monotonic())
    assert told() == [
        "cannot knit and will try again: slow (queue=q)",
        "cannot knit and will try again: gone (queue=q)",
        "knits again, after 4 failures (queue=q)",
    ]
    assert {record.queue for record in caplog.records} == {"q"}


def test_trouble_that_comes_and_goes_is_over_when_it_stays_away(trouble, told, clock):
    for _ in range(100):
        trouble.failed(Throttled("slow"))
        trouble.worked(clock.monotonic())
        clock.advance(STEADY / 20)
    assert len(told()) == 3
    clock.advance(STEADY)
    trouble.worked(clock.monotonic())
    assert told()[-1].startswith("knits again, after 99 failures")


def test_trouble_that_comes_back_late_is_told_as_the_first_was(trouble, told, clock):
    for _ in range(2):
        trouble.failed(Throttled("slow"))
        trouble.worked(clock.monotonic())
        clock.advance(STEADY + 1)
    assert len(told()) == 4


def test_what_was_asked_before_it_began_tells_nothing_of_its_end(trouble, told, clock):
    since = clock.monotonic()
    clock.advance(1)
    trouble.failed(Throttled("slow"))
    clock.advance(1)
    trouble.worked(since)
    trouble.failed(Throttled("slow"))
    assert len(told()) == 1
    trouble.worked(clock.monotonic())
    assert told()[-1].startswith("knits again, after 2 failures")
