"""What is left of SQS's 12 hours."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS
from celery_sqs_visibility.policy.run_limits import NEAR_HORIZON_SECONDS, is_near_horizon, until_horizon

HORIZON = 50_000.0
END = HORIZON - HORIZON_MARGIN_SECONDS


@pytest.mark.parametrize(
    ("now", "left", "near"),
    [
        (END - 43_000, 43_000, False),
        (END - NEAR_HORIZON_SECONDS - 1, NEAR_HORIZON_SECONDS + 1, False),
        (END - NEAR_HORIZON_SECONDS, NEAR_HORIZON_SECONDS, True),
        (END, 0, True),
        (HORIZON + 60, 0, True),
    ],
)
def test_it_is_near_for_the_last_15_minutes(now, left, near):
    assert (until_horizon(HORIZON, now), is_near_horizon(HORIZON, now)) == (left, near)
