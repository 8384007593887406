"""How long SQS is left alone after an error."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.functional import fxrange

from celery_sqs_visibility.policy.backoff import (
    MAX_PAUSE_SECONDS,
    MAX_REPLY_GRACE_SECONDS,
    MIN_PAUSE_SECONDS,
    MIN_REPLY_GRACE_SECONDS,
    pause,
    reply_grace,
    retry_interval,
)

RECOVERY = 3  # seconds after the end of a fault in which it is to be noticed


@given(st.integers(1, 10_000))
def test_a_pause_is_never_nothing_and_never_too_long(failures):
    assert MIN_PAUSE_SECONDS <= pause(failures) <= MAX_PAUSE_SECONDS < RECOVERY


def test_pauses_begin_short_and_grow():
    assert pause(1) <= 2 * MIN_PAUSE_SECONDS
    assert max(pause(20) for _ in range(200)) > 10 * MIN_PAUSE_SECONDS


def test_pauses_are_spread_so_that_workers_do_not_come_back_together():
    assert len({pause(10) for _ in range(20)}) > 1
    graces = {reply_grace() for _ in range(20)}
    assert len(graces) > 1
    assert min(graces) >= MIN_REPLY_GRACE_SECONDS
    assert max(graces) <= MAX_REPLY_GRACE_SECONDS < RECOVERY, "in time to notice the end of a fault"


@given(st.integers(0, 30), *[st.floats(0, 100)] * 3)
def test_the_intervals_of_a_retry_policy_are_kombus(retries, start, step, longest):
    """As in `kombu.utils.functional.retry_over_time`."""
    policy = {"interval_start": start, "interval_step": step, "interval_max": longest}
    values = fxrange(start, longest + start, step, repeatlast=True)
    theirs = next(itertools.islice((min(value, longest) for value in values), retries, None))
    ours = retry_interval(policy, failures=retries + 1)
    assert theirs - step - 1e-6 <= ours  # what kombu repeats last may be a step less than the longest
    assert ours == pytest.approx(min(start + retries * step, longest))
