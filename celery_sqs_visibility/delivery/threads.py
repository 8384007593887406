"""Background threads: starting them, and reading sets that several of them change."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from celery_sqs_visibility.contacts.python import BoundedStart

T = TypeVar("T")

#: Copying is repeated if a member came or went meanwhile; an attempt takes microseconds.
COPY_ATTEMPTS: Final = 1000

#: A new thread begins within milliseconds, or within a second on a badly overloaded machine.
START_SECONDS: Final = 5.0


def start_thread(target: Callable[..., None], name: str, *args: object) -> threading.Thread | None:
    """Start a daemon thread. Returns `None` if the system refuses one. Any thread; never raises.

    If the new thread meets a MemoryError before its first line, Python waits for it for ever, with every lock
    of the caller (CPython's issue 140746). So the wait is bounded, and a thread that begins later, after the
    machine stood still, ends at once.
    """
    claims = itertools.count()  # whoever draws 0 decides: the thread runs, or is given up

    def run() -> None:
        if next(claims) == 0:
            target(*args)

    try:
        # Not a subclass created at import: gevent may replace `threading.Thread` later.
        thread = threading.Thread(target=run, name=name, daemon=True)
        started = BoundedStart(thread, START_SECONDS)
        thread.start()
    except (RuntimeError, MemoryError):  # too many threads, or the interpreter is ending
        return None
    return None if started.expired and next(claims) == 0 else thread


def is_main_thread() -> bool:
    """Whether the caller is the main thread or one of its greenlets, even if a pool has patched Python."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None:  # not installed from Python, so Python cannot install it again
        return threading.current_thread() is threading.main_thread()
    try:
        signal.signal(signal.SIGINT, handler)  # Python refuses that to other threads
    except ValueError:
        return False
    return True


def snapshot(members: Iterable[T]) -> list[T]:
    """Return the members of a `WeakSet` that other threads may change. Any thread.

    Iterating over a `WeakSet` raises a RuntimeError if a member comes or goes meanwhile.
    """
    for _ in range(COPY_ATTEMPTS - 1):
        try:
            return list(members)
        except RuntimeError:  # Set changed size during iteration
            continue
    return list(members)
