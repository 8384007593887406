"""Background threads of the package: their start, and sets that several of them change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from celery_sqs_visibility.contacts.python import BoundedStart

T = TypeVar("T")

#: A copy is tried anew when a member came or went meanwhile; one attempt takes microseconds.
COPY_ATTEMPTS: Final = 1000

#: A new thread begins within milliseconds, and on a machine that is far too busy within a second.
START_SECONDS: Final = 5.0


def start_thread(target: Callable[..., None], name: str, *args: object) -> threading.Thread | None:
    """Start a daemon thread; `None` if the system has no room for one. Any thread; never raises.

    Python itself waits for ever, with all that its caller has locked, where the new thread meets a
    MemoryError before its first line (CPython's issue 140746). A thread that begins too late, on a machine
    that stood still, ends at once: it was given up.
    """
    claim = threading.Lock()  # the first to take it decides: the thread runs, or is given up

    def run() -> None:
        if claim.acquire(blocking=False):
            target(*args)

    try:
        # Not a class of ours, made when this was imported: gevent may replace `threading.Thread` after that.
        thread = threading.Thread(target=run, name=name, daemon=True)
        started = BoundedStart(thread, START_SECONDS)
        thread.start()
    except (RuntimeError, MemoryError):  # no more threads just now, or the interpreter is ending
        return None
    return None if started.expired and claim.acquire(blocking=False) else thread


def is_main_thread() -> bool:
    """Whether the caller is the main thread, or a greenlet of it, also where a pool has patched Python."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None:  # one that was not installed from Python, and cannot be from there
        return threading.current_thread() is threading.main_thread()
    try:
        signal.signal(signal.SIGINT, handler)  # Python lets no other thread do that
    except ValueError:
        return False
    return True


def snapshot(members: Iterable[T]) -> list[T]:
    """The members of a `WeakSet` that other threads may change. Any thread.

    Python code iterates a `WeakSet`, with a RuntimeError where a member comes or goes meanwhile.
    """
    for _ in range(COPY_ATTEMPTS - 1):
        try:
            return list(members)
        except RuntimeError:  # Set changed size during iteration
            continue
    return list(members)
