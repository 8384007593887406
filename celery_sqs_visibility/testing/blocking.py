"""Detects that a run waits for something, such as a lock, that an interrupted run of the thread holds.

Such a wait would never end, because the run that holds it continues only afterwards.
"""

from __future__ import annotations

import signal
import threading
import time  # noqa: TID251 - of the machine, and of its processor
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from celery_sqs_visibility.delivery.threads import is_main_thread, start_thread

#: The interval at which the thread is checked. A late check means that the machine is busy.
LOOK_SECONDS: Final = 0.05

#: A thread waits if it used no processor time between this many consecutive checks.
LOOKS: Final = 4

#: A signal that does nothing without a handler. macOS does not tell how much time another thread has used.
SIGNAL: Final = getattr(signal, "SIGURG", None) if hasattr(time, "pthread_getcpuclockid") else None


@contextmanager
def ended_if_it_waits(end: Callable[[], None]) -> Iterator[None]:
    """Inside, call `end` once this thread waits. It raises an exception at the place of the wait.

    Works only in a main thread, and with Unix signals. A wait in C code that does not check for signals must
    end by itself.
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
    """Send the signal each time that the thread has used no processor time for a while."""
    clock = time.pthread_getcpuclockid(thread)
    looked, used, looks = time.monotonic(), -1.0, 0
    while not over.wait(LOOK_SECONDS):
        last, looked = looked, time.monotonic()
        before, used = used, time.clock_gettime(clock)
        looks = looks + 1 if used == before and looked - last < 2 * LOOK_SECONDS else 0
        if looks == LOOKS and SIGNAL is not None:
            looks = 0
            signal.pthread_kill(thread, SIGNAL)
