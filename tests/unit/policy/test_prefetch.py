"""How many messages are held, and when one more request is worth its price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.prefetch import (
    DURATION_MEMORY,
    LONG,
    PACE_MEMORY,
    UNLIMITED,
    Duration,
    Pace,
    Slots,
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


def test_a_duration_follows_the_latest_runs():
    duration = Duration()
    assert duration.seconds is None
    duration.note(3)
    assert duration.seconds == 3
    for _ in range(10 * DURATION_MEMORY):
        duration.note(0.5)
    assert duration.seconds == pytest.approx(0.5, abs=0.01)


DURATIONS = st.none() | st.floats(0, 1000)
SLOTS = st.integers(1, 500)
MULTIPLIERS = st.integers(1, 10)


def test_no_limit_means_ten_thousand():
    assert capacity(0, Slots(2, 0), 0, None, 0) == UNLIMITED


@given(SLOTS, MULTIPLIERS, st.floats(0, 1e6), st.none() | st.floats(LONG, 1e5), st.floats(0, 60))
def test_of_long_tasks_nothing_is_held_that_a_free_slot_could_not_start(slots, times, pace, lasts, seconds):
    count = slots * times
    assert capacity(count, Slots(slots, count), pace, lasts, seconds) == slots


@given(SLOTS, MULTIPLIERS, st.floats(0, 1e6), DURATIONS)
def test_prefetch_seconds_of_zero_hold_nothing_beyond_what_runs(slots, times, pace, lasts):
    count = slots * times
    assert capacity(count, Slots(slots, count), pace, lasts, 0) == slots


@given(SLOTS, MULTIPLIERS, st.integers(0, 1000), st.floats(0, 1e5), DURATIONS, st.floats(0, 60))
def test_tasks_that_wait_in_memory_for_their_eta_do_not_fill_the_room(
    slots, times, waiting, pace, lasts, seconds
):
    # Celery raises its count by one for each.
    count = slots * times
    pool = Slots(slots, count)
    more = capacity(count + waiting, pool, pace, lasts, seconds)
    assert more == capacity(count, pool, pace, lasts, seconds) + waiting
    assert more >= slots + waiting


@pytest.mark.parametrize(
    ("lasts", "limit"), [(0.9, 4), (0.5, 6), (0.1, 8), (0.0, 8)], ids=["0.9 s", "0.5 s", "0.1 s", "nothing"]
)
def test_of_shorter_tasks_prefetch_seconds_of_work_are_held_up_to_celerys_count(lasts, limit):
    assert capacity(8, Slots(2, 8), 0, lasts, 1) == limit


def test_of_short_tasks_what_runs_in_prefetch_seconds_is_held():
    assert capacity(2, Slots(2, 2), 1000, 0.002, 1) == 1000
    assert capacity(2, Slots(2, 2), 1000, 0.002, 0.1) == 100
    assert capacity(2, Slots(2, 2), 1e9, 0.0, 60) == UNLIMITED


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 200))
def test_a_slot_that_may_stand_idle_is_worth_a_request(held, slots, more):
    needed = enough_to_ask(held, slots, slots + more, BATCH_ENTRIES)
    assert 1 <= needed <= BATCH_ENTRIES
    if held < slots or not more:
        assert needed == 1
    else:
        assert needed == min(BATCH_ENTRIES, more)


@given(SLOTS, MULTIPLIERS, st.floats(0, 1e4), DURATIONS, st.floats(0, 60))
def test_an_empty_process_always_asks(slots, times, pace, lasts, seconds):
    limit = capacity(slots * times, Slots(slots, slots * times), pace, lasts, seconds)
    assert limit >= enough_to_ask(0, slots, limit, BATCH_ENTRIES)


def test_the_first_tasks_count_as_done_in_a_quarter_of_a_second():
    pace = Pace()
    for n in range(10):
        pace.note(n / 1000)
    assert pace.per_second(0.01) == pytest.approx(40, rel=0.01)
