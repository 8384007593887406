"""How near the end of SQS's 12 hours is."""

from __future__ import annotations

from typing import Final

from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

#: A run is warned so long before the end of the 12 hours.
NEAR_HORIZON_SECONDS: Final = 15 * 60


def until_horizon(horizon: float, now: float) -> float:
    """Seconds for which a message can still be hidden. Instants are monotonic."""
    return max(0.0, horizon - HORIZON_MARGIN_SECONDS - now)


def is_near_horizon(horizon: float, now: float) -> bool:
    """Whether it is time to end the run, or to continue it with a new message."""
    return until_horizon(horizon, now) <= NEAR_HORIZON_SECONDS
