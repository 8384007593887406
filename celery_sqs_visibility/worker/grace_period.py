"""How long this process has from SIGTERM to SIGKILL, as far as its environment says."""

from __future__ import annotations

import math
import os
from typing import Final

from celery.utils.log import get_logger

logger = get_logger(__name__)

#: Says in how many seconds after SIGTERM the SIGKILL comes: in Kubernetes the pod's
#: terminationGracePeriodSeconds, repeated as the literal value of an environment variable.
GRACE_VARIABLE: Final = "TERMINATION_GRACE_PERIOD_SECONDS"

#: Set by Amazon ECS in every container.
ECS_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"

#: Amazon ECS's default `stopTimeout`.
ECS_STOP_SECONDS: Final = 30

#: The most that handing back and ending take.
MARGIN_SECONDS: Final = 2


def check_grace_period(shutdown_timeout: float) -> float:
    """Seconds from SIGTERM to SIGKILL, infinite if not known; warn if `shutdown_timeout` is longer."""
    grace, reason = grace_period()
    longest = max(0.0, grace - MARGIN_SECONDS)
    if shutdown_timeout > longest:
        logger.warning(
            "shutdown_timeout is %g s, but %s: set at most %g, or messages of running tasks stay hidden "
            "for a visibility timeout",
            shutdown_timeout,
            reason,
            longest,
        )
    return grace


def grace_period() -> tuple[float, str]:
    """Seconds from SIGTERM to SIGKILL, infinite if not known, and the source as a clause."""
    seconds = os.environ.get(GRACE_VARIABLE)
    if seconds:
        try:
            return float(seconds), f"{GRACE_VARIABLE} says that SIGKILL comes {seconds} s after SIGTERM"
        except ValueError:
            logger.warning("expected %s to be a number of seconds, got %r", GRACE_VARIABLE, seconds)
    if ECS_VARIABLE in os.environ:
        return ECS_STOP_SECONDS, (
            f"Amazon ECS kills {ECS_STOP_SECONDS} s after SIGTERM, unless stopTimeout is longer "
            f"(then say so in {GRACE_VARIABLE})"
        )
    return math.inf, ""
