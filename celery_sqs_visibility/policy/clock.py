"""The only module that reads a clock.

Monotonic time is for durations and deadlines inside this process; wall-clock time exists only at
the wire (SQS timestamps, Celery ETAs). Everything else takes a `Clock`, so that tests turn the hands.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where seconds come from."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, as SQS and Celery count them."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


SYSTEM_CLOCK: Clock = SystemClock()
