"""Limits of a run: SQS's 12 hours, and inactivity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS
from celery_sqs_visibility.policy.run_limits import is_inactive, latest_wake, until_horizon

INSTANTS = st.floats(0, 1e6)
TIMEOUTS = st.floats(1, 43_200)
NOW = 1000.0
HORIZON = 50_000.0
END = HORIZON - HORIZON_MARGIN_SECONDS


@pytest.mark.parametrize(("now", "left"), [(END - 43_000, 43_000), (END, 0), (HORIZON + 60, 0)])
def test_the_horizon_has_a_margin(now, left):
    assert until_horizon(HORIZON, now) == left


@given(INSTANTS, TIMEOUTS, INSTANTS, st.floats(0, 1e5))
def test_a_run_has_its_whole_timeout_since_its_last_sign_and_since_the_machine_woke(
    sign, timeout, woke, silence
):
    now = max(sign, woke) + silence
    assert is_inactive(sign, timeout, woke, now) == (min(now - sign, now - woke) >= timeout)


@pytest.mark.parametrize(("pause", "since"), [(0.5, 5.0), (2.0, 5.0), (2.1, NOW), (3600, NOW)])
def test_a_long_pause_between_two_checks_was_a_sleep_of_the_machine(pause, since):
    assert latest_wake(5.0, NOW - pause, NOW) == since
