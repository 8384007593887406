"""How long to leave SQS alone after an error."""

from __future__ import annotations

import random

#: First pause after an error that heals by itself, and the longest: recovery is noticed within that time.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0

#: A missing permission or queue is waited for slowly.
LONGEST_PAUSE_UNTIL_REPAIRED = 5.0


def pause(failures: int, *, heals: bool) -> float:
    """Seconds to wait after that many failures in a row (1 or more), with full jitter above a floor.

    Args:
        failures: how many in a row.
        heals: whether the error passes by itself (network, throttling) or somebody has to repair it.
    """
    longest = LONGEST_PAUSE if heals else LONGEST_PAUSE_UNTIL_REPAIRED
    ceiling = min(longest, FIRST_PAUSE * 2.0 ** min(failures, 16))
    return random.uniform(FIRST_PAUSE, ceiling)  # noqa: S311
