"""How long SQS is left alone after an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.pauses import (
    FIRST_DOUBT,
    FIRST_PAUSE,
    LAST_DOUBT,
    LONGEST_PAUSE,
    patience,
    pause,
)

RECOVERY = 3  # seconds after the end of a fault in which it is to be noticed


@given(st.integers(1, 10_000))
def test_a_pause_is_never_nothing_and_never_too_long(failures):
    assert FIRST_PAUSE <= pause(failures) <= LONGEST_PAUSE < RECOVERY


def test_the_first_pause_is_short():
    assert pause(1) <= 2 * FIRST_PAUSE


def test_pauses_grow():
    assert max(pause(20) for _ in range(200)) > 10 * FIRST_PAUSE


def test_pauses_are_spread_so_that_workers_do_not_come_back_together():
    assert len({pause(10) for _ in range(20)}) > 1
    assert len({patience() for _ in range(20)}) > 1


def test_one_asks_again_beside_a_late_answer_in_time_to_notice_the_end_of_a_fault():
    assert FIRST_DOUBT <= patience() <= LAST_DOUBT < RECOVERY
