"""Locks that survive a fork, and the one that guards boto3's sessions."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class ProcessLock:
    """A reentrant lock for each process, usable from any thread.

    Billiard forks pool children from a process whose other threads may hold any lock at that instant. A child
    that inherited such a lock would wait for ever for a thread it does not have.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, threading.RLock] = {}

    def __enter__(self) -> None:
        pid = os.getpid()
        lock = self._by_pid.get(pid)
        if lock is None:
            # setdefault is atomic: two threads never get two locks.
            lock = self._by_pid.setdefault(pid, threading.RLock())
        lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._by_pid[os.getpid()].release()


#: Guards all use of boto3 and botocore sessions: they are not thread-safe, the clients they make are.
SESSIONS = ProcessLock()
