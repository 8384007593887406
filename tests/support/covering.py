"""A plugin of coverage.py: a process that a test would kill writes first what it has measured.

Only `make coverage` loads it. Workers are killed when their test is over; SIGKILL leaves no time to write.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from coverage import Coverage

#: No process uses it, and one that measures nothing ends by it.
WRITE_AND_END = signal.SIGRTMIN + 9


def coverage_init(_registry: object, _options: object) -> None:
    """coverage.py calls this in every process, before anything else runs there."""
    signal.signal(WRITE_AND_END, _write_and_end)


def _write_and_end(*_: object) -> NoReturn:
    if (coverage := Coverage.current()) is not None:
        coverage.stop()
        coverage.save()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
