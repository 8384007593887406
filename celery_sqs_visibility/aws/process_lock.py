"""Locks, and what is made once for all threads: none is inherited across a fork."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

C = TypeVar("C")
T = TypeVar("T")


class ProcessLock:
    """A reentrant lock for each process.

    Billiard forks pool children while other threads may hold locks. A child that inherited a held lock would
    wait for ever, because it doesn't have the thread that holds it.
    """

    def __init__(self) -> None:
        self._by_pid: dict[int, threading.RLock] = {}

    def __enter__(self) -> None:
        pid = os.getpid()
        lock = self._by_pid.get(pid)
        if lock is None:
            # setdefault is atomic: all threads get the same lock.
            lock = self._by_pid.setdefault(pid, threading.RLock())
        lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._by_pid[os.getpid()].release()


#: Guards what `shared_property` makes.
_MAKING = ProcessLock()


class shared_property(cached_property[T]):  # noqa: N801 - as its base
    """A `cached_property` of an object that threads share. It is made once.

    Since Python 3.12 a plain one has no lock.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> shared_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        """Return its value, which the instance's own attribute hides from then on."""
        with _MAKING:
            return super().__get__(instance, owner)


#: Guards boto3 and botocore sessions, which are not thread-safe. The clients that they make are.
SESSIONS = ProcessLock()


class ProcessClients(Generic[C]):
    """Makes a client per process when one is first needed. Any thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        # By process id. Written under SESSIONS, read without it: looking up a key is atomic.
        self._clients: dict[int, C] = {}

    def get(self) -> C:
        """Return this process's client.

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
        """Forget this process's client and return it. The next one reads credentials again."""
        with SESSIONS:
            return self._clients.pop(os.getpid(), None)
