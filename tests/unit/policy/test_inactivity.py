"""When a run counts as inactive, and what a task may declare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import InactivityError, OptionError
from celery_sqs_visibility.policy.run_limits import is_inactive, latest_wake, parse_inactivity_timeout

INSTANTS = st.floats(0, 1e6)
TIMEOUTS = st.floats(1, 43_200)
NOW = 1000.0


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), (1, 1), (2.5, 2.5), ("30", 30), (43_200, 43_200)]
)
def test_what_a_task_may_declare(value, seconds):
    assert parse_inactivity_timeout(value) == seconds


@pytest.mark.parametrize("value", [0, 0.9, 43_201, True, "soon", -5, float("nan")])
def test_what_it_may_not_is_refused_with_the_value(value):
    with pytest.raises(OptionError, match=r"expected inactivity_timeout to be .*, got"):
        parse_inactivity_timeout(value)


@given(INSTANTS, TIMEOUTS, INSTANTS, st.floats(0, 1e5))
def test_a_run_has_its_whole_timeout_since_its_last_sign_and_since_the_machine_woke(
    sign, timeout, woke, silence
):
    now = max(sign, woke) + silence
    if is_inactive(sign, timeout, woke, now):
        assert now - sign >= timeout
        assert now - woke >= timeout
    else:
        assert min(now - sign, now - woke) < timeout


@pytest.mark.parametrize(("pause", "since"), [(0.5, 5.0), (2.0, 5.0), (2.1, NOW), (3600, NOW)])
def test_a_long_pause_between_two_checks_was_everybodys(pause, since):
    assert latest_wake(5.0, NOW - pause, NOW) == since


def test_the_error_says_how_long_it_was():
    assert str(InactivityError.after(30.0)) == "no sign of life for 30 s (inactivity_timeout)"
