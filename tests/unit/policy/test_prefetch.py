"""How many messages are held, and when one more request is worth its price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.prefetch import (
    PACE_MEMORY,
    UNLIMITED,
    WORTHWHILE,
    Pace,
    capacity,
    enough_to_ask,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES


def test_nothing_has_run_at_no_pace():
    assert Pace().per_second(1000) == 0


@pytest.mark.parametrize("rate", [5, 50, 2000])
def test_a_steady_pace_is_measured(rate):
    pace = Pace()
    for number in range(10 * rate):
        pace.note(1000 + number / rate)
    assert pace.per_second(1010) == pytest.approx(rate, rel=0.12)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_pace_fades_and_never_grows_by_itself(start, later):
    pace = Pace()
    pace.note(start)
    assert 0 <= pace.per_second(start + later) <= pace.per_second(start)


def test_an_old_pace_is_forgotten():
    pace = Pace()
    for _ in range(1000):
        pace.note(10)
    assert pace.per_second(10 + 20 * PACE_MEMORY) < 0.001


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_clock_read_by_another_thread_a_little_earlier_does_no_harm(one, other):
    pace = Pace()
    pace.note(max(one, other))
    assert pace.per_second(min(one, other)) <= pace.per_second(max(one, other))


def test_no_limit_means_ten_thousand():
    assert capacity(0, 0, 0) == UNLIMITED


@given(st.integers(1, 9000), st.floats(0, 1e6))
def test_prefetch_seconds_of_zero_hold_nothing_beyond_celerys_count(prefetch_count, pace):
    assert capacity(prefetch_count, pace, 0) == prefetch_count


@given(st.integers(1, 100_000), st.floats(0, 1e5), st.floats(0, 60))
def test_never_less_is_held_than_celery_asks_for(prefetch_count, pace, seconds):
    # Celery raises its count by one for every ETA task that it holds in memory: those must not fill the room.
    assert capacity(prefetch_count, pace, seconds) >= prefetch_count


@given(st.integers(1, 5000), st.floats(0, 1e5), st.floats(0, 60))
def test_beyond_celerys_count_are_held_the_seconds_asked_for(prefetch_count, pace, seconds):
    limit = capacity(prefetch_count, pace, seconds)
    work = pace * seconds
    if work <= prefetch_count * WORTHWHILE:
        assert limit == prefetch_count
    else:
        assert limit == min(int(work), UNLIMITED)


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 200))
def test_a_slot_that_may_stand_idle_is_worth_a_request(held, prefetch_count, more):
    limit = prefetch_count + more
    needed = enough_to_ask(held, prefetch_count, limit, BATCH_ENTRIES)
    assert 1 <= needed <= BATCH_ENTRIES
    if held < prefetch_count or not more:
        assert needed == 1
    else:
        assert needed == min(BATCH_ENTRIES, more)


@given(st.integers(0, 50), st.integers(0, 100))
def test_an_empty_process_always_asks(prefetch_count, more):
    limit = capacity(prefetch_count, more, 1)
    assert limit >= enough_to_ask(0, prefetch_count, limit, BATCH_ENTRIES)
