"""Pauses of requests to SQS after errors."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

#: Pauses after an error of any kind. The longest limits how late a recovery is noticed: of the network, a
#: permission, a queue or credentials.
MIN_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0

MIN_REPLY_GRACE_SECONDS = 1.5
MAX_REPLY_GRACE_SECONDS = 2.5


def pause(failures: int) -> float:
    """Choose the pause after `failures` in a row (1 or more), with full jitter above a floor."""
    ceiling = min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2.0 ** min(failures, 16))
    return random.uniform(MIN_PAUSE_SECONDS, ceiling)  # noqa: S311


def retry_interval(policy: Mapping[str, Any], failures: int) -> float:
    """Seconds to wait before sending a publication again, by kombu's retry policy.

    Args:
        policy: `interval_start`, `interval_step` and `interval_max`. The defaults are kombu's
            (kombu/connection.py: `Connection.ensure`).
        failures: attempts that failed in a row.
    """
    start, step, longest = (float(policy.get(f"interval_{name}", 1)) for name in ("start", "step", "max"))
    return min(start + (failures - 1) * step, longest)


def reply_grace() -> float:
    """Choose how many seconds the answer to a poll may be late before it counts as lost."""
    return random.uniform(MIN_REPLY_GRACE_SECONDS, MAX_REPLY_GRACE_SECONDS)  # noqa: S311
