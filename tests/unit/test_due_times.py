"""Two beats say the same of a periodic task's due time, whenever each was started and however late it is."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.beat import due_key, latest, on_grid, until_next

INSTANTS = st.floats(0, 4e9)


@given(INSTANTS, st.integers(1, 10**6))
def test_an_instant_is_between_two_multiples_of_an_interval(instant, every):
    before, wait = on_grid(instant, every), until_next(instant, every)
    assert before <= instant < before + every
    assert before % every == 0
    assert 0 < wait <= every


@given(
    st.lists(st.integers(0, 10**7), min_size=1, unique=True).map(sorted),
    st.integers(0, 10**7),
    st.integers(1, 10**7),
)
def test_the_latest_occurrence_is_found_however_long_a_beat_was_down(occurrences, now, down):
    passed = [each for each in occurrences if now - down < each <= now]

    def after(instant):
        return next((each for each in occurrences if each > instant), 10**9)

    if passed:
        assert latest(after, now - down, now) == passed[-1]


def test_a_schedule_with_one_occurrence_is_asked_a_few_times():
    assert latest(lambda _instant: 500.0, 0.0, 1e9) == 500.0


@pytest.mark.parametrize(
    ("name", "due", "key"),
    [
        ("nightly-report", 1_800_000_000, "nightly-report@2027-01-15T08:00:00Z"),
        ("tick", 1_800_000_000.5, "tick@2027-01-15T08:00:00.500000Z"),
    ],
)
def test_the_key_is_the_name_and_the_instant(name, due, key):
    assert due_key(name, due) == key


@given(st.text(), INSTANTS)
def test_whatever_the_name_sqs_takes_its_key(name, due):
    key = due_key(name, due)
    assert 0 < len(key) <= 128
    assert set(key) <= set(string.ascii_letters + string.digits + string.punctuation)


def test_long_names_that_differ_have_keys_that_differ():
    assert len({due_key("x" * 200 + end, 0.0) for end in "ab"}) == 2
