"""What a running task can see of its lease, in whatever process it runs: a few numbers in shared memory.

A pool's child gets a request once; what happens to the message afterwards only the worker's main process
knows. So the main process keeps a board, made before the pool forks, on which each running task has a seat:
four numbers that the main process writes and the child reads, but for one by which the child asks for more
time. No lock is shared, and nothing is sent but a byte that says "somebody asks".

A forked child inherits the board. One that was spawned, a fresh interpreter, opens it by its name, which the
lease's key tells; it inherits no pipe, and what it asks is found by the supervisor, twice a second.
"""

from __future__ import annotations

import atexit
import itertools
import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: How many tasks may run at once and have a seat. Memory is taken up by those that were ever used.
ROWS: Final = 65_536

# The numbers of a seat, all floats, so that each is read and written whole.
GENERATION, DEADLINE, LOST, WANTED = range(4)
CELLS: Final = 4

SIZE: Final = (ROWS * CELLS + 1) * 8

#: A seat, which of its leases, since seats are used again, and the name of its board.
Key = tuple[int, float, str]


class Lease:
    """A running task's lease, as seen from one process.

    The main process writes `deadline` and `lost`, the child asks with `wanted`. When the delivery is settled
    the lease is over, and reads as lost. Its seat may be another's by then: what was read counts only if the
    lease is not over after it was read.
    """

    __slots__ = ("_cells", "_first", "_lease_table", "key")

    def __init__(self, lease_table: LeaseTable | SpawnedLeaseTable, key: Key) -> None:
        self.key = key
        self._lease_table = lease_table
        self._cells = lease_table.cells
        self._first = key[0] * CELLS

    @property
    def over(self) -> bool:
        """Whether the delivery was settled meanwhile."""
        return self._cells[self._first + GENERATION] != self.key[1]

    @property
    def deadline(self) -> float:
        """The monotonic instant at which the message's visibility lapses."""
        return self._cells[self._first + DEADLINE]

    @deadline.setter
    def deadline(self, instant: float) -> None:
        self._cells[self._first + DEADLINE] = instant

    @property
    def lost(self) -> bool:
        """Whether another worker may have the message."""
        return self._cells[self._first + LOST] != 0 or self.over

    @lost.setter
    def lost(self, lost: bool) -> None:
        self._cells[self._first + LOST] = float(lost)

    @property
    def wanted(self) -> float:
        """The monotonic instant until which the task wants the message hidden; 0 when that was answered."""
        return self._cells[self._first + WANTED]

    def begin(self, deadline: float) -> None:
        """The seat is ours from now on. The main process."""
        self.deadline, self.lost = deadline, False
        self._cells[self._first + WANTED] = 0.0
        self._cells[self._first + GENERATION] = self.key[1]  # last: until then it is nobody's

    def want(self, until: float) -> None:
        """Ask for the message to be hidden until that monotonic instant. The task's process."""
        self._cells[self._first + WANTED] = until
        self._lease_table.ask()

    def answered(self, wanted: float) -> None:
        """What could be done about that wish was done. The main process."""
        if self.wanted == wanted:  # and the task has not wished for more meanwhile
            self._cells[self._first + WANTED] = 0.0

    def end(self) -> None:
        """The delivery is settled: the seat is free. The main process."""
        self._lease_table.free(self.key)


class LeaseTable:
    """The seats, and whether the worker is stopping. Made in the main process, before its pool forks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._fd, self.name = _memory()
        # The last cell says that the worker is stopping.
        self.cells = _cells(self._fd)
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # The main process's alone. No lock guards them: Celery's cold shutdown settles, and so ends leases,
        # in a signal handler, on a thread that may be here just now. What is done to them is atomic.
        self._taken: dict[Key, tuple[Lease, Callable[[float], None]]] = {}
        self._free: list[int] = []
        self._unused = iter(range(ROWS))
        self._generations = itertools.count(1.0)

    @property
    def stopping(self) -> bool:
        """Whether the worker's shutdown has begun."""
        return self.cells[-1] != 0

    def stop(self, *, stopping: bool = True) -> None:
        """Tell every running task. In a signal handler: a write to memory."""
        self.cells[-1] = float(stopping)

    def take(self, deadline: float, on_ask: Callable[[float], None]) -> Lease | None:
        """A seat for a task that begins to run, `None` if all are taken. The main process, any thread.

        Args:
            deadline: the monotonic instant at which its message's visibility lapses.
            on_ask: is told until when the task wants the message hidden.
        """
        row = self._row()
        if row is None:
            return None
        lease = Lease(self, (row, next(self._generations), self.name))
        lease.begin(deadline)
        self._taken[lease.key] = lease, on_ask
        return lease

    def _row(self) -> int | None:
        try:
            return self._free.pop()
        except IndexError:
            return next(self._unused, None)

    def free(self, key: Key) -> None:
        """The seat's lease is over; harmless if it was before. The main process, any thread."""
        if self._taken.pop(key, None) is not None:
            row = key[0]
            self.cells[row * CELLS + GENERATION] = 0.0
            self._free.append(row)

    def lease(self, key: Key) -> Lease:
        """The lease of that key, to be read. Any process."""
        return Lease(self, key)

    def ask(self) -> None:
        """Somebody wants more time. The task's process, which may be the main one."""
        if os.getpid() == self.pid:
            self.answer()
        else:
            self.wake()

    def wake(self) -> None:
        """Have the main process's event loop come by. Any process, any thread."""
        with suppress(BlockingIOError):  # a full pipe is a woken reader
            os.write(self._pipe[1], b"\0")

    def fileno(self) -> int:
        """A descriptor that is readable when a child has asked, for the main process's event loop."""
        return self._pipe[0]

    def replace_stuck(self, now: float) -> None:  # noqa: ARG002 - see `supervisor.Ward`
        """Celery's event loop is left in a warm shutdown, and may be blocked: then it is answered here."""
        if os.getpid() == self.pid:
            self.answer()

    def on_readable(self) -> None:
        """A child has asked. The main process's event loop."""
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        self.answer()

    def answer(self) -> None:
        """Pass on what was asked. The main process, any thread."""
        for lease, on_ask in self._taken.copy().values():
            if wanted := lease.wanted:
                on_ask(wanted)


class SpawnedLeaseTable:
    """The board as seen from a process that did not inherit it.

    Args:
        name: the board's.

    Raises:
        OSError: there is none, or it cannot be opened.
    """

    def __init__(self, name: str) -> None:
        fd = os.open(name, os.O_RDWR)
        try:
            self.cells = _cells(fd)
        finally:
            os.close(fd)

    @property
    def stopping(self) -> bool:
        """See `LeaseTable.stopping`."""
        return self.cells[-1] != 0

    def lease(self, key: Key) -> Lease:
        """See `LeaseTable.lease`."""
        return Lease(self, key)

    def ask(self) -> None:
        """The worker looks by itself."""

    def free(self, key: Key) -> None:
        """The worker's to do."""


_lease_table: LeaseTable | None = None
_spawned: dict[str, SpawnedLeaseTable] = {}


def open_lease_table() -> LeaseTable:
    """The worker's board, made if there is none. The main process, before its pool forks."""
    global _lease_table  # noqa: PLW0603 - what a fork hands down
    if _lease_table is None or _lease_table.pid != os.getpid():
        _lease_table = LeaseTable()
    _lease_table.stop(stopping=False)
    return _lease_table


def lease_table() -> LeaseTable | None:
    """The board of the worker to which this process belongs, if it belongs to one and inherited it."""
    return _lease_table


def spawned_lease_table(key: Key) -> SpawnedLeaseTable | None:
    """The board of that lease, for a process that inherited none; `None` if it cannot be opened."""
    name = key[2]
    if name not in _spawned:
        try:
            _spawned[name] = SpawnedLeaseTable(name)
        except OSError:
            return None
    return _spawned[name]


def _memory() -> tuple[int, str]:
    """Shared memory: a descriptor, and a path by which processes of the same user can open it.

    On Linux it is gone when the processes are that have it open, however they end. Elsewhere it is a
    temporary file, removed when this process exits in order.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("celery-sqs-visibility")
        name = f"/proc/{os.getpid()}/fd/{fd}"
    else:
        fd, name = tempfile.mkstemp(prefix="celery-sqs-visibility-")
        atexit.register(_remove, name, os.getpid())
    os.truncate(fd, SIZE)
    return fd, name


def _remove(name: str, pid: int) -> None:
    if os.getpid() == pid:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _cells(fd: int) -> memoryview[float]:
    return memoryview(mmap.mmap(fd, SIZE)).cast("d")
