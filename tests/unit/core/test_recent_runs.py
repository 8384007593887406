"""The pace of tasks and their duration, as of lately."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.core.capacity import (
    DURATION_MEMORY_TASKS,
    PACE_MEMORY_SECONDS,
    PACE_STEP_SECONDS,
    RecentRuns,
)


def runs_that_ended(*instants, seconds=0.0):
    runs = RecentRuns()
    for instant in instants:
        runs.note(instant, seconds)
    return runs


def test_before_the_first_run_there_is_no_pace_and_no_duration():
    assert (RecentRuns().per_second(1000), RecentRuns().seconds) == (0, None)


@pytest.mark.parametrize("rate", [5, 50, 2000])
def test_a_steady_pace_is_measured_and_then_forgotten(rate):
    runs = runs_that_ended(*(1000 + number / rate for number in range(10 * rate)))
    assert runs.per_second(1010) == pytest.approx(rate, rel=0.12)
    assert runs.per_second(1010 + 20 * PACE_MEMORY_SECONDS) < 0.001


def test_the_first_tasks_count_as_done_in_a_quarter_of_a_second():
    assert runs_that_ended(*(n / 1000 for n in range(10))).per_second(0.01) == pytest.approx(40, rel=0.01)


def test_a_pace_is_forgotten_after_a_rest_which_does_not_count_then():
    runs = runs_that_ended(*[0.0] * 10)
    assert runs.per_second(PACE_MEMORY_SECONDS) > 1
    rested = PACE_MEMORY_SECONDS + 0.001
    assert runs.per_second(rested) == 0
    for _ in range(10):
        runs.note(rested, 0.0)
    assert runs.per_second(rested) == 40


@pytest.mark.parametrize(("begin", "steps", "together"), [(1.0, 0.9, True), (0.0, 1.0, False)])
def test_tasks_that_end_within_a_hundredth_of_a_second_count_as_ended_at_once(begin, steps, together):
    runs = runs_that_ended(begin, begin + steps * PACE_STEP_SECONDS)
    assert (runs.per_second(begin + 1) == runs_that_ended(begin, begin).per_second(begin + 1)) is together


@given(st.floats(0, 1e6), st.floats(-100, 1e6))
def test_the_pace_fades_and_never_grows_by_itself_nor_by_a_clock_read_a_little_earlier(start, later):
    runs = runs_that_ended(start)
    assert 0 <= runs.per_second(start + later) <= runs.per_second(start)


def test_the_duration_follows_the_latest_runs():
    runs = runs_that_ended(0, seconds=3)
    assert runs.seconds == 3
    runs.note(0, 0.5)
    assert runs.seconds == 2.5
    for _ in range(10 * DURATION_MEMORY_TASKS):
        runs.note(0, 0.5)
    assert runs.seconds == pytest.approx(0.5, abs=0.01)
