"""What runs of tasks do: sleep, take their process along, or fail with what cannot be told."""

from __future__ import annotations

import os
import signal
import threading
import time


def nap(seconds: float) -> None:
    """Sleep in short steps.

    A signal that comes just as `time.sleep` lets go of the interpreter's lock is handled at that sleep's end.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))


#: Seconds in which the main process reads that a child has begun a run. Where it has not when the child dies,
#: Celery gives that run to another child, without another receive (celery/concurrency/asynpool.py:
#: `on_partial_read`).
UNTIL_ACCEPTED = 1.0


def exit_now():
    time.sleep(UNTIL_ACCEPTED)
    os._exit(1)


def kill_self():
    time.sleep(UNTIL_ACCEPTED)
    os.kill(os.getpid(), signal.SIGKILL)


class Unpicklable(Exception):
    """Fails to travel from the child to the main process."""

    def __init__(self, one, two):
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()
