"""A sleep that a signal always interrupts in time."""

from __future__ import annotations

import time


def nap(seconds: float) -> None:
    """Sleep in short steps.

    A signal that comes just as `time.sleep` lets go of the interpreter's lock is handled at that sleep's end.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
