"""Waits for an ETA in SQS."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.eta import (
    LEAD_SECONDS,
    MAX_PARK_SECONDS,
    MAX_WAIT_SECONDS,
    DelayLimits,
    Limits,
    Park,
    is_never,
    kept_delay,
    park_seconds,
    parks_needed,
    parks_until_eta,
    plan_park,
    stated_retention,
    wasted_receives,
)
from celery_sqs_visibility.policy.quotas import (
    DEFAULT_RETENTION_SECONDS,
    DELAY_SECONDS,
    RETENTION_SECONDS,
    VISIBILITY_HORIZON_SECONDS,
)

DAY = 24 * 3600


@pytest.mark.parametrize(
    ("wait", "limits", "delay"),
    [
        (30.9, DelayLimits(), 30),
        (1.0, DelayLimits(), 1),
        (0.9, DelayLimits(), None),
        (-5.0, DelayLimits(), None),
        (5000, DelayLimits(), DELAY_SECONDS),
        (100, DelayLimits(sleep=60), 40),
        (60, DelayLimits(sleep=60), None),
        (5000, DelayLimits(sleep=60), DELAY_SECONDS),
        (500, DelayLimits(retention=300), 150),
    ],
    ids=repr,
)
def test_sqs_hides_a_message_for_as_many_whole_seconds_as_it_can(wait, limits, delay):
    assert limits.delay_for(wait) == delay


@given(
    st.floats(-1e9, 1e9),
    st.floats(0, 1e6),
    st.none() | st.integers(1, RETENTION_SECONDS),
    st.integers(0, 43200),
)
def test_a_delay_is_one_of_sqs_and_leaves_time_for_a_worker_that_sleeps(wait, sleep, retention, timeout):
    delay = DelayLimits(sleep, retention, timeout).delay_for(wait)
    if delay is not None:
        assert 1 <= delay <= min(DELAY_SECONDS, wait - sleep)
        assert retention is None or delay <= retention / 2


@pytest.mark.parametrize(
    ("wait", "fifo", "retention", "words"),
    [
        (13 * DAY, True, None, None),
        (14 * DAY, True, None, "for 1,209,600 s at most, and a copy would lose its place"),
        (3600, True, 3600, "for 3,600 s, and a copy would lose its place"),
        (3599, True, 3600, None),
        (1000 * DAY, False, None, None),
        (1000 * DAY, False, 3600, None),
        (300, False, 120, "too short to copy it after a visibility_timeout (120 s)"),
        (100, False, 120, None),
    ],
    ids=repr,
)
def test_an_eta_is_refused_where_nothing_keeps_the_message_until_then(wait, fifo, retention, words):
    reason = DelayLimits(retention=retention, visibility_timeout=120).why_not(wait, fifo=fifo)
    assert (reason is None) == (words is None)
    if words is not None:
        assert words in reason
        assert "EventBridge Scheduler" in reason


@pytest.mark.parametrize(("delay", "refused"), [(None, False), (59, False), (60, True)])
def test_a_delay_that_outlasts_the_retention_is_refused(delay, refused):
    assert (DelayLimits(retention=60).why_not_delayed(delay) is not None) == refused
    assert DelayLimits().why_not_delayed(delay) is None


@pytest.mark.parametrize(
    ("given", "kept", "said"),
    [
        (5, 5, ""),
        ("0", 0, ""),
        (DELAY_SECONDS, DELAY_SECONDS, ""),
        (DELAY_SECONDS + 1, DELAY_SECONDS, "SQS takes at most 900"),
        (-1, None, "not a number of seconds"),
        ("soon", None, "not a number of seconds"),
        (float("inf"), None, "not a number of seconds"),
    ],
)
def test_a_delay_is_clamped_with_a_reason(given, kept, said):
    delay, reason = kept_delay(given)
    assert delay == kept
    assert said in reason
    assert bool(reason) == bool(said)


def test_ten_years_are_the_longest_wait():
    assert not is_never(MAX_WAIT_SECONDS)
    assert is_never(MAX_WAIT_SECONDS + 1)


@pytest.mark.parametrize(
    ("attributes", "retention"),
    [({}, None), ({"MessageRetentionPeriod": "3600"}, 3600), ({"MessageRetentionPeriod": "long"}, None)],
)
def test_the_retention_that_queues_are_created_with_is_known(attributes, retention):
    assert stated_retention(attributes) == retention


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
    assert wasted_receives(1, parkings=0, wait=2 * MAX_PARK_SECONDS, visibility_timeout=120) == 0


@pytest.mark.parametrize(("wait", "copied"), [(0.9, False), (1, True), (4.9, True), (60, True), (3600, True)])
def test_a_copy_gets_rid_of_wasted_receives_if_there_is_time(wait, copied):
    """Those of parks with a shorter visibility timeout, too, which end five seconds before the ETA."""
    park = plan_park(wait, Limits(3, None, 0, DEFAULT_RETENTION_SECONDS, 120, wasted_receives=2))
    assert park == (Park(int(wait) - LEAD_SECONDS, renewed=True) if copied else None)
