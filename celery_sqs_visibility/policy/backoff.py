"""How long to leave SQS alone after an error."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

#: First pause after an error, and the longest, whatever the error: its end is noticed within that time, be
#: it that the network heals or that somebody restores a permission, a queue or credentials.
SHORTEST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

#: An answer that is that many seconds late, at the least and at the most, may never come.
SHORTEST_REPLY_GRACE_SECONDS = 1.5
LONGEST_REPLY_GRACE_SECONDS = 2.5


def pause(failures: int) -> float:
    """Seconds to wait after that many failures in a row (1 or more), with full jitter above a floor."""
    ceiling = min(LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS * 2.0 ** min(failures, 16))
    return random.uniform(SHORTEST_PAUSE_SECONDS, ceiling)  # noqa: S311


def retry_interval(policy: Mapping[str, Any], failures: int) -> float:
    """Seconds to wait before a publication is sent again, by kombu's retry policy.

    Args:
        policy: `interval_start`, `interval_step`, `interval_max` and `max_retries`. What is missing is what
            it is to kombu (kombu/connection.py: `Connection.ensure`).
        failures: attempts that failed in a row, those of publications before this one included.
    """
    most = policy.get("max_retries")
    retries = failures - 1 if most is None else (failures - 1) % (most + 1)
    start, step, longest = (float(policy.get(f"interval_{name}", 1)) for name in ("start", "step", "max"))
    return min(start + retries * step, longest)


def reply_grace() -> float:
    """Seconds by which an answer may be late before one asks again beside it, with jitter."""
    return random.uniform(SHORTEST_REPLY_GRACE_SECONDS, LONGEST_REPLY_GRACE_SECONDS)  # noqa: S311
