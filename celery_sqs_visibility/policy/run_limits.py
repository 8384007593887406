"""Limits of a run beside Celery's: SQS's 12 hours, and inactivity. Instants are monotonic."""

from __future__ import annotations

from typing import Any, Final

from celery_sqs_visibility.policy.option_parsers import Seconds
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

#: How long before the end of the 12 hours a run is warned.
NEAR_HORIZON_SECONDS: Final = 15 * 60

#: Runs are checked twice a second. After a longer pause the machine, or this process, has slept.
MAX_CHECK_INTERVAL_SECONDS: Final = 2.0

_PARSER: Final = Seconds(1, VISIBILITY_HORIZON_SECONDS)


def until_horizon(horizon: float, now: float) -> float:
    """Seconds for which a message can still be hidden. Instants are monotonic."""
    return max(0.0, horizon - HORIZON_MARGIN_SECONDS - now)


def is_near_horizon(horizon: float, now: float) -> bool:
    """Whether it is time to end the run, or to continue it with a new message."""
    return until_horizon(horizon, now) <= NEAR_HORIZON_SECONDS


def parse_inactivity_timeout(value: Any) -> float | None:
    """The seconds that a task declares; `None` if it declares none.

    Raises:
        OptionError: naming the value and its bounds.
    """
    return None if value is None else _PARSER("inactivity_timeout", value)


def is_inactive(last_sign: float, timeout: float, awake_since: float, now: float) -> bool:
    """Whether a run has shown no life for `timeout` seconds in which it could. Instants are monotonic.

    Args:
        last_sign: when it last did.
        timeout: its `inactivity_timeout`.
        awake_since: since when this machine has not slept.
        now: the present instant.
    """
    return now - max(last_sign, awake_since) >= timeout


def latest_wake(awake_since: float, checked: float, now: float) -> float:
    """The instant since which this machine has not slept, after checks at `checked` and `now`."""
    return now if now - checked > MAX_CHECK_INTERVAL_SECONDS else awake_since
