"""How many messages to hold: enough to keep short tasks fed, nothing a free slot could not start at once."""

from __future__ import annotations

import math

#: Seconds over which the pace is averaged.
PACE_MEMORY = 2.0

#: The pace is measured, so it wobbles; only clearly more work than Celery's own prefetch counts as more.
WORTHWHILE = 1.5

#: What "no limit" (Celery's prefetch count of 0) means here, well under SQS's 120,000 in flight.
UNLIMITED = 10_000


class Pace:
    """Tasks per second lately, exponentially weighted. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def note(self, now: float) -> None:
        """A task ended."""
        self._rate = self.per_second(now) + 1 / PACE_MEMORY
        self._at = now

    def per_second(self, now: float) -> float:
        """Tasks per second, as of now."""
        return self._rate * math.exp(-max(0.0, now - self._at) / PACE_MEMORY)


def capacity(prefetch_count: int, tasks_per_second: float, prefetch_seconds: float) -> int:
    """How many messages the process may hold.

    Args:
        prefetch_count: Celery's, which grows with its ETA tasks and its pool; 0 is unlimited.
        tasks_per_second: the measured pace.
        prefetch_seconds: how many seconds of work to hold beyond what runs.
    """
    if prefetch_count <= 0:
        return UNLIMITED
    work = tasks_per_second * prefetch_seconds
    if work <= prefetch_count * WORTHWHILE:
        return prefetch_count
    return max(prefetch_count, min(math.floor(work), UNLIMITED))


def enough_to_ask(held: int, prefetch_count: int, limit: int, batch: int) -> int:
    """The least free room worth a request.

    While slots may stand idle, one. Beyond that a full batch, since a request costs the same for one
    message as for ten.
    """
    extra = limit - prefetch_count
    if held < prefetch_count or extra <= 0:
        return 1
    return min(batch, extra)
