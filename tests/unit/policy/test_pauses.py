"""How long SQS is left alone after an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.pauses import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_PAUSE_UNTIL_REPAIRED,
    pause,
)


@given(st.integers(1, 10_000), st.booleans())
def test_a_pause_is_never_nothing_and_never_too_long(failures, heals):
    longest = LONGEST_PAUSE if heals else LONGEST_PAUSE_UNTIL_REPAIRED
    assert FIRST_PAUSE <= pause(failures, heals=heals) <= longest


@given(st.booleans())
def test_the_first_pause_is_short(heals):
    assert pause(1, heals=heals) <= 2 * FIRST_PAUSE


@pytest.mark.parametrize("heals", [True, False])
def test_pauses_are_spread_so_that_workers_do_not_come_back_together(heals):
    assert len({pause(10, heals=heals) for _ in range(20)}) > 1


def test_what_has_to_be_repaired_is_waited_for_more_slowly():
    assert max(pause(20, heals=False) for _ in range(200)) > LONGEST_PAUSE
