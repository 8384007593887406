"""Messages with a far ETA wait in SQS, come back a little early, and their parks are not attempts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.eta import (
    LEAD_SECONDS,
    MAX_PARK_SECONDS,
    Limits,
    Park,
    park_seconds,
    parks_needed,
    parks_until_eta,
    plan_park,
    wasted_receives,
)
from celery_sqs_visibility.policy.quotas import (
    DEFAULT_RETENTION_SECONDS,
    DELAY_SECONDS,
    RETENTION_SECONDS,
    VISIBILITY_HORIZON_SECONDS,
)

DAY = 24 * 3600
WAITS = st.floats(-1e7, 1e7)
AROUND_WHOLE_PARKS = st.builds(
    lambda parks, seconds, fraction: parks * MAX_PARK_SECONDS + seconds + fraction,
    st.integers(0, 300),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1e-6, 0.5]),
)
TIMEOUTS = st.integers(1, VISIBILITY_HORIZON_SECONDS)


def park_until_held(wait, visibility_timeout, lead=LEAD_SECONDS):
    """Every park of a message that comes back exactly when it should."""
    parks = []
    while (seconds := park_seconds(wait, visibility_timeout, lead)) is not None:
        parks.append(seconds)
        wait -= seconds
    return parks, wait


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [(-5, None), (30, None), (120 + LEAD_SECONDS, None), (600.7, 600 - LEAD_SECONDS)],
)
def test_a_far_eta_is_parked_and_comes_back_a_little_early_and_a_near_one_is_held(wait, seconds):
    assert park_seconds(wait, 120) == seconds


@given(WAITS, TIMEOUTS)
def test_a_park_is_something_sqs_accepts_for_a_wait_beyond_the_visibility_timeout(wait, visibility_timeout):
    seconds = park_seconds(wait, visibility_timeout)
    assert (seconds is None) == (wait <= visibility_timeout + LEAD_SECONDS)
    if seconds is not None:
        assert 0 < seconds <= MAX_PARK_SECONDS < VISIBILITY_HORIZON_SECONDS
        assert wait - seconds >= LEAD_SECONDS, "it comes back before its ETA"


@given(WAITS | AROUND_WHOLE_PARKS, TIMEOUTS, st.sampled_from([0, LEAD_SECONDS]))
def test_the_parks_of_the_past_are_those_that_were_made(more, visibility_timeout, lead):
    wait = visibility_timeout + lead + more
    parks, left = park_until_held(wait, visibility_timeout, lead)
    assert parks_needed(wait, visibility_timeout, lead) == len(parks)
    assert left <= max(wait, 0) or wait < 0


def test_an_eta_next_week_is_a_dozen_parks_and_one_in_the_year_9000_takes_no_time():
    parks, left = park_until_held(7 * DAY, 120)
    assert parks_needed(7 * DAY, 120) == len(parks) == 15
    assert left == LEAD_SECONDS
    assert parks_needed(7000 * 365 * DAY, 120) == 5_117_108


def test_where_the_first_receive_is_unknown_there_were_no_more_parks_than_retention_allows():
    now = 1_800_000_000.0
    most = parks_needed(RETENTION_SECONDS, 120)
    assert parks_until_eta(now, 0, now, 120) == most == 29
    assert parks_until_eta(now, now - 3600, now, 120) == 1
    assert parks_until_eta(now - 13 * DAY, 0, now, 120) == 2


@dataclasses.dataclass
class Wait:
    """A message's way to its ETA, through SQS and, if it must be, through copies."""

    wait: float
    max_receive_count: int | None
    retention: int
    visibility_timeout: int = 120
    receive_count: int = 1
    age: float = 0.0
    copies: int = 0

    def __post_init__(self):
        self.first_wait = self.wait

    def hop(self):
        parks = parks_needed(self.first_wait, self.visibility_timeout)
        wasted = wasted_receives(self.receive_count, parks, self.wait, self.visibility_timeout)
        limits = Limits(
            self.receive_count,
            self.max_receive_count,
            self.age,
            self.retention,
            self.visibility_timeout,
            wasted,
        )
        return plan_park(self.wait, limits), limits

    def go(self, hop, limits):
        seconds = min(hop.seconds, limits.seconds_to_stay, DELAY_SECONDS) if hop.renewed else hop.seconds
        self.wait -= seconds
        if hop.renewed:
            self.copies, self.receive_count, self.age = self.copies + 1, 1, seconds
            self.first_wait = self.wait
        else:
            self.receive_count, self.age = self.receive_count + 1, self.age + seconds

    def until_held(self):
        parks = 0
        while (step := self.hop())[0] is not None:
            self.go(*step)
            assert self.wait >= LEAD_SECONDS
            assert self.age <= self.retention, "SQS would have deleted it"
            assert self.max_receive_count is None or self.receive_count <= self.max_receive_count, "redriven"
            parks = 0 if step[0].renewed else parks + 1
        assert parks_needed(self.first_wait, self.visibility_timeout) == parks == self.receive_count - 1
        return self


@given(
    st.floats(0, 40 * DAY),
    st.integers(1, 20) | st.none(),
    st.sampled_from([DAY // 4, DAY, DEFAULT_RETENTION_SECONDS, RETENTION_SECONDS]),
    st.integers(1, 1800),
)
def test_no_eta_is_too_far_for_redrive_policy_and_retention(wait, most, retention, visibility_timeout):
    held = Wait(wait, most, retention, visibility_timeout).until_held()
    assert held.wait <= visibility_timeout + LEAD_SECONDS
    if most is not None:
        assert held.receive_count <= min(2, most), "the receives that are left are for attempts"


@pytest.mark.parametrize(
    ("days", "most", "retention", "copies", "receive_count"),
    [
        (1.9, None, DEFAULT_RETENTION_SECONDS, 0, 5),
        (3, None, DEFAULT_RETENTION_SECONDS, 1, 3),
        (4, 5, RETENTION_SECONDS, 3, 2),
    ],
    ids=["no limit in sight", "the retention is used up to its half", "five receives"],
)
def test_a_wait_takes_copies_where_there_are_limits(days, most, retention, copies, receive_count):
    held = Wait(days * DAY, most, retention).until_held()
    assert (held.copies, held.receive_count) == (copies, receive_count)


@pytest.mark.parametrize(
    ("most", "age"), [(1, 0), (None, 3 * DAY)], ids=["may not come back", "older than half the retention"]
)
def test_a_message_that_cannot_wait_itself_is_renewed_at_its_first_receive(most, age):
    limits = Limits(1, most, age, DEFAULT_RETENTION_SECONDS, 120)
    assert plan_park(600, limits) == Park(600 - LEAD_SECONDS, renewed=True)


@given(st.floats(0, MAX_PARK_SECONDS), TIMEOUTS, st.floats(0, 3600))
def test_a_message_that_comes_back_late_is_counted_the_same_where_one_park_is_enough(
    wait, visibility_timeout, late
):
    seconds = park_seconds(wait, visibility_timeout)
    if seconds is not None:
        assert parks_needed(wait, visibility_timeout) == 1
        assert park_seconds(wait - seconds - late, visibility_timeout) is None


@pytest.mark.parametrize(
    ("receives", "wait", "wasted"),
    [(1, 3600, 0), (3, 3600, 2), (2, 60, 0), (4, 60, 2), (4, 0, 0), (4, -60, 0)],
)
def test_receives_before_the_eta_that_were_no_parks_are_wasted(receives, wait, wasted):
    parks = parks_needed(3600, 120)
    assert wasted_receives(receives, parks, wait, 120) == wasted


def test_where_clocks_differ_the_first_receive_is_not_wasted():
    assert wasted_receives(1, parks=0, wait=2 * MAX_PARK_SECONDS, visibility_timeout=120) == 0


@pytest.mark.parametrize(("wait", "copied"), [(0.9, False), (1, True), (4.9, True), (60, True), (3600, True)])
def test_a_copy_gets_rid_of_wasted_receives_if_there_is_time(wait, copied):
    """Those of parks with a shorter visibility timeout, too, which end five seconds before the ETA."""
    park = plan_park(wait, Limits(3, None, 0, DEFAULT_RETENTION_SECONDS, 120, wasted_receives=2))
    assert park == (Park(int(wait) - LEAD_SECONDS, renewed=True) if copied else None)


def test_an_eta_next_week_is_a_dozen_parks():
    assert parks_needed(7 * 24 * 3600, 120) == 15
    assert sum(park_until_held(7 * 24 * 3600, 120)[0]) == 7 * 24 * 3600 - LEAD_SECONDS
