"""Limits of a run beside Celery's: SQS's 12 hours, and inactivity. Instants are monotonic."""

from __future__ import annotations

from typing import Final

from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

#: How long before the end of the 12 hours a run is warned.
NEAR_HORIZON_SECONDS: Final = 15 * 60

#: Runs are checked twice a second. After a longer pause the machine, or this process, has slept.
MAX_CHECK_INTERVAL_SECONDS: Final = 2.0


def until_horizon(horizon: float, now: float) -> float:
    """Seconds for which a message can still be hidden."""
    return max(0.0, horizon - HORIZON_MARGIN_SECONDS - now)


def is_inactive(last_sign: float, timeout: float, awake_since: float, now: float) -> bool:
    """Returns whether a run was silent for `timeout` seconds, not counting a sleep of the machine.

    Args:
        last_sign: its last sign of life.
        timeout: its `inactivity_timeout`.
        awake_since: the end of the machine's last sleep.
        now: the current instant.
    """
    return now - max(last_sign, awake_since) >= timeout


def latest_wake(awake_since: float, checked: float, now: float) -> float:
    """The end of the machine's last sleep, given that checks were made at `checked` and `now`."""
    return now if now - checked > MAX_CHECK_INTERVAL_SECONDS else awake_since
