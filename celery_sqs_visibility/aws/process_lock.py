"""Locks, and clients of boto3's, that each process has for itself: nothing inherited survives a fork."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

C = TypeVar("C")


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


class ProcessClients(Generic[C]):
    """Makes a client when one is first needed. Usable from any thread, and in forked children."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        # By process id. Written under SESSIONS; read without, a dict's look-up being one step.
        self._clients: dict[int, C] = {}

    def get(self) -> C:
        """This process's client.

        Raises:
            Exception: boto3's, about the settings.
        """
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            with SESSIONS:
                client = self._clients.get(pid) or self._make()
                self._clients[pid] = client
        return client

    def discard(self) -> C | None:
        """Forget this process's client, and return it. The next one has credentials as they are by then."""
        with SESSIONS:
            return self._clients.pop(os.getpid(), None)
