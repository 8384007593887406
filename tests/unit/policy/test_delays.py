"""A delay ends before its ETA, never after, in time for a worker that sleeps; what cannot wait is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.eta import DelayLimits, stated_retention
from celery_sqs_visibility.policy.quotas import DELAY_SECONDS, RETENTION_SECONDS

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
        (14 * DAY, True, None, "for 1,209,600 s at the most, and a copy would lose its place"),
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
    ("attributes", "retention"),
    [({}, None), ({"MessageRetentionPeriod": "3600"}, 3600), ({"MessageRetentionPeriod": "long"}, None)],
)
def test_the_retention_that_queues_are_created_with_is_known(attributes, retention):
    assert stated_retention(attributes) == retention
