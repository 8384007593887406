"""The clock. Only this module reads it; everything else takes a `Clock`, which tests move.

Durations and deadlines inside this process are monotonic; wall-clock time exists only at the wire (SQS
timestamps, Celery ETAs).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wall clock."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin, the same in all processes of a machine."""

    def wall(self) -> float:
        """Seconds since the Unix epoch, as SQS and Celery count them."""


def _monotonic() -> Callable[[], float]:
    """The machine's monotonic clock, if possible one that counts suspended time, as SQS does.

    On Linux `time.monotonic` stops during a suspend, and so do the timeouts of locks and conditions.
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


def sleep(seconds: float) -> None:
    """Block this thread or greenlet for that time. Signal handlers run meanwhile."""
    time.sleep(seconds)
