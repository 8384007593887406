"""When the progress of a run is worth storing."""

from __future__ import annotations

from typing import Final

#: From one state PROGRESS to the next.
PROGRESS_INTERVAL_SECONDS: Final = 1.0

PERCENT: Final = 100


class ProgressThrottle:
    """At once, then once a second at the most and, of a known total, once a percent: 101 times at the most.

    Args:
        total: how many items there are, if that is known.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._stored_at: float | None = None
        self._percent: int | None = None

    def is_due(self, current: int, now: float) -> bool:
        """Whether to store at that monotonic instant that `current` items are done; it counts as stored."""
        percent = PERCENT * current // self._total if self._total else None
        if self._stored_at is not None:
            too_soon = now - self._stored_at < PROGRESS_INTERVAL_SECONDS
            if too_soon or (percent is not None and percent == self._percent):
                return False
        self._stored_at, self._percent = now, percent
        return True
