"""Contacts with Python's threads, exit hooks and codecs, where they have no public names."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any, cast


class BoundedStart(threading.Event):
    """Bounds the time that `Thread.start` waits for the new thread (threading.py: `Thread._started`).

    Without it a thread that runs out of memory before its first line (CPython's issue 140746) blocks the
    thread that starts it forever, and every lock that this one holds.

    Args:
        thread: a thread that is not started yet.
        seconds: how long `start` waits.

    Attributes:
        expired: whether the latest wait ended without the thread.
    """

    expired = False

    def __init__(self, thread: threading.Thread, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        cast("Any", thread)._started = self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the thread, for `timeout` or the bounded number of seconds."""
        begun = super().wait(self._seconds if timeout is None else timeout)
        self.expired = not begun
        return begun


def call_before_threads_are_joined(hook: Callable[[], object]) -> None:
    """Call a hook at the interpreter's exit, before earlier hooks (threading.py: `_register_atexit`).

    `concurrent.futures` joins its threads in such a hook. Without ours a run that cannot be ended would keep
    the process alive.
    """
    cast("Any", threading)._register_atexit(hook)


def call_exit_hooks() -> None:
    """Call the functions registered with `atexit`, as Python does (`atexit._run_exitfuncs`).

    Without it a process that ends while threads still run would skip the user's exit hooks.
    """
    cast("Any", atexit)._run_exitfuncs()


def threads_of(executor: Any) -> list[threading.Thread]:
    """Return a `ThreadPoolExecutor`'s threads (concurrent/futures/thread.py: `_threads`).

    Without them a worker would leave its thread pool while tasks still run, or never.
    """
    return list(executor._threads)


def decodes_to_text(codec: Any) -> bool:
    """Return whether a codec decodes bytes to text (codecs.py: `CodecInfo._is_text_encoding`).

    `bytes.decode` asks the same. Without it a message could name "zlib" as its encoding, and be a bomb.
    """
    return bool(codec._is_text_encoding)
