"""Runs that wait on the simulation's one thread for what an interrupted run has: a lock, a row of a database.

Such a wait would have no end, since the run that has it goes on only afterwards.
"""

from __future__ import annotations

import signal
import threading
import time  # noqa: TID251 - of the machine, and of its processor
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from celery_sqs_visibility.delivery.threads import is_main_thread, start_thread

#: From one look at the thread to the next. One that comes late says that the machine is busy.
LOOK_SECONDS: Final = 0.05

#: A thread waits that has taken no time of its processor from one look to the next, so many times in a row.
LOOKS: Final = 4

#: Does nothing without a handler. macOS does not tell the time that a thread of the caller's has taken.
SIGNAL: Final = getattr(signal, "SIGURG", None) if hasattr(time, "pthread_getcpuclockid") else None


@contextmanager
def ended_if_it_waits(end: Callable[[], None]) -> Iterator[None]:
    """Inside, call `end` once this thread waits; it raises an exception where the thread waits.

    Only a main thread can be called so, where there are Unix signals. A wait in C code that does not look for
    signals ends by itself.
    """
    if SIGNAL is None or not is_main_thread():
        yield
        return
    over = threading.Event()
    before = signal.signal(SIGNAL, lambda *_: None if over.is_set() else end())
    watch = start_thread(_watch, "sqs-simulation", threading.get_ident(), over)
    try:
        yield
    finally:
        over.set()
        if watch is not None:
            watch.join()
        signal.signal(SIGNAL, before)


def _watch(thread: int, over: threading.Event) -> None:
    """Send the signal each time that the thread has taken no time of its processor for a while."""
    clock = time.pthread_getcpuclockid(thread)
    looked, used, looks = time.monotonic(), -1.0, 0
    while not over.wait(LOOK_SECONDS):
        last, looked = looked, time.monotonic()
        before, used = used, time.clock_gettime(clock)
        looks = looks + 1 if used == before and looked - last < 2 * LOOK_SECONDS else 0
        if looks == LOOKS and SIGNAL is not None:
            looks = 0
            signal.pthread_kill(thread, SIGNAL)
