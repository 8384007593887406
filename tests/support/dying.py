"""How a task's run takes its process along, or has nothing to tell it."""

from __future__ import annotations

import os
import signal
import threading
import time

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
