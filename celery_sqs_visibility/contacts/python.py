"""Contacts with Python's own threads and its end, where its library has no public names."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any, cast


class BoundedStart(threading.Event):
    """Bounds the time that `Thread.start` waits for the new thread (threading.py: `Thread._started`).

    Without it a thread that meets a MemoryError before its first line (CPython's issue 140746) blocks, for
    ever, whoever starts it, with all that is locked.

    Args:
        thread: is not started yet.
        seconds: how long `start` waits.
    """

    expired = False

    def __init__(self, thread: threading.Thread, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        cast("Any", thread)._started = self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the thread, no longer than that."""
        begun = super().wait(self._seconds if timeout is None else timeout)
        self.expired = not begun
        return begun


def call_before_threads_are_joined(hook: Callable[[], object]) -> None:
    """Call it at the interpreter's end, before the hooks that are there (threading.py: `_register_atexit`).

    `concurrent.futures` joins its threads in such a hook. Without ours a run that cannot be ended would keep
    the process.
    """
    cast("Any", threading)._register_atexit(hook)


def call_exit_hooks() -> None:
    """Call what is registered with `atexit`, as Python would (`atexit._run_exitfuncs`).

    Without it a process that is ended beside its threads would leave out exit hooks of the user's.
    """
    cast("Any", atexit)._run_exitfuncs()


def threads_of(executor: Any) -> list[threading.Thread]:
    """The threads of a `ThreadPoolExecutor` (concurrent/futures/thread.py: `_threads`).

    Without them a pool of threads would be left while tasks still run, or never.
    """
    return list(executor._threads)


def decodes_to_text(codec: Any) -> bool:
    """Whether a codec makes text of bytes, as `bytes.decode` asks (codecs.py: `CodecInfo._is_text_encoding`).

    Without it a message could name "zlib" as the encoding of its text, and be a bomb.
    """
    return bool(codec._is_text_encoding)
