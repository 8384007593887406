"""Messages with a far ETA wait in SQS, come back a little early, and their parks are not attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.parking import LEAD, LONGEST_PARK, park_for, parks_before
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

WAITS = st.floats(-1e7, 1e7)
TIMEOUTS = st.integers(1, VISIBILITY_HORIZON)


def park_until_held(wait, visibility_timeout):
    """Every park of a message that comes back exactly when it should."""
    parks = []
    while (seconds := park_for(wait, visibility_timeout)) is not None:
        parks.append(seconds)
        wait -= seconds
    return parks, wait


def test_a_near_eta_is_held():
    assert park_for(30, 120) is None
    assert park_for(120 + LEAD, 120) is None


def test_a_past_eta_is_held():
    assert park_for(-5, 120) is None


def test_a_far_eta_is_parked_and_comes_back_a_little_early():
    assert park_for(600.7, 120) == 600 - LEAD


@given(WAITS, TIMEOUTS)
def test_a_park_is_something_sqs_accepts(wait, visibility_timeout):
    seconds = park_for(wait, visibility_timeout)
    assert seconds is None or 0 < seconds <= LONGEST_PARK < VISIBILITY_HORIZON


@given(WAITS, TIMEOUTS)
def test_a_parked_message_comes_back_before_its_eta(wait, visibility_timeout):
    seconds = park_for(wait, visibility_timeout)
    assert seconds is None or wait - seconds >= LEAD


@given(WAITS, TIMEOUTS)
def test_a_wait_within_the_visibility_timeout_is_never_parked(wait, visibility_timeout):
    assert (park_for(wait, visibility_timeout) is None) == (wait <= visibility_timeout + LEAD)


@given(WAITS, TIMEOUTS)
def test_the_parks_of_the_past_are_those_that_were_made(wait, visibility_timeout):
    parks, left = park_until_held(wait, visibility_timeout)
    assert parks_before(wait, visibility_timeout) == len(parks)
    assert left <= max(wait, 0) or wait < 0


@given(st.floats(0, LONGEST_PARK), TIMEOUTS, st.floats(0, 3600))
def test_a_message_that_comes_back_late_is_counted_the_same_where_one_park_is_enough(
    wait, visibility_timeout, late
):
    seconds = park_for(wait, visibility_timeout)
    if seconds is not None:
        assert parks_before(wait, visibility_timeout) == 1
        assert park_for(wait - seconds - late, visibility_timeout) is None


def test_an_eta_next_week_is_a_dozen_parks():
    assert parks_before(7 * 24 * 3600, 120) == 15
    assert sum(park_until_held(7 * 24 * 3600, 120)[0]) == 7 * 24 * 3600 - LEAD
