"""The clock, read nowhere else.

Durations and deadlines inside this process are monotonic; wall-clock time exists only at the wire (SQS
timestamps, Celery ETAs). Everything else takes a `Clock`, which tests move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wall clock."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin, the same in all processes of a machine; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, as SQS and Celery count them."""
        ...


def _monotonic() -> Callable[[], float]:
    """The machine's monotonic clock that goes on while the machine is suspended, if it has one.

    Visibility timeouts go on meanwhile. On Linux `time.monotonic` stands still, and so do the timeouts of
    locks and conditions, which only last longer then.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic
    clock = partial(time.clock_gettime, boottime)
    try:
        clock()
    except OSError:  # a kernel, or a sandbox, without it
        return time.monotonic
    return clock


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(_monotonic())
    wall = staticmethod(time.time)


SYSTEM_CLOCK: Clock = SystemClock()
