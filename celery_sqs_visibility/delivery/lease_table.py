"""Leases of running tasks, as their own processes see them: a few numbers in shared memory.

A pool's child gets a request once; only the worker's main process knows what happens to the message later. So
the main process keeps a table, made before the pool forks. Each running task has a row of eight numbers: the
main process writes them and the child reads them, except those with which the child requests more time, shows
life, says whether it has the key of its exclusive task, and counts earlier attempts. No lock is shared, and
nothing is sent but a byte that says "there is a request".

A forked child inherits the table. A spawned one, a fresh interpreter, opens it by its name, which the lease's
key carries; it inherits no pipe, and the supervisor finds its requests, twice a second.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import LeaseKey

# The numbers of a row, all floats, so that each is read and written whole. The generation is written last:
# until it stands there the row is nobody's.
DEADLINE, LOST, REQUESTED, HORIZON, LAST_SIGN, KEY, RETRIES, GENERATION = range(8)
CELLS: Final = 8
ROW: Final = Struct(f"{CELLS}d")

#: Last signs of life that are no instants: the run need not show life; it was silent for too long.
UNWATCHED: Final = 0.0
INACTIVE: Final = -1.0

#: Tasks that may run at once and have a row. Only rows that were ever used take up memory.
ROWS: Final = 65_536

#: After the rows: whether the worker is stopping, and since when the store of exclusive keys answers.
STOPPING: Final = ROWS * CELLS
STORE_ANSWERS_SINCE: Final = STOPPING + 1
BYTES: Final = (STORE_ANSWERS_SINCE + 1) * 8


class Lease:
    """A running task's lease, as seen from one process.

    When the delivery is settled the lease is over, and reads as lost. Its row may be another lease's by then:
    what was read counts only if the lease is not over after it was read.
    """

    __slots__ = ("_cells", "_first", "_table", "key")

    def __init__(self, table: LeaseTableView, key: LeaseKey) -> None:
        self.key = key
        self._table = table
        self._cells = table.cells
        self._first = key[0] * CELLS

    @property
    def over(self) -> bool:
        """Whether the delivery was settled meanwhile."""
        return self._cells[self._first + GENERATION] != self.key[1]

    @property
    def deadline(self) -> float:
        """The monotonic instant at which the message's visibility lapses. The main process writes it."""
        return self._cells[self._first + DEADLINE]

    @deadline.setter
    def deadline(self, instant: float) -> None:
        self._cells[self._first + DEADLINE] = instant

    @property
    def lost(self) -> bool:
        """Whether another worker may have the message. The main process writes it."""
        return self._cells[self._first + LOST] != 0 or self.over

    @lost.setter
    def lost(self, lost: bool) -> None:
        self._cells[self._first + LOST] = float(lost)

    @property
    def horizon(self) -> float:
        """The monotonic instant at which SQS's 12 hours end. The main process writes it."""
        return self._cells[self._first + HORIZON]

    @horizon.setter
    def horizon(self, instant: float) -> None:
        self._cells[self._first + HORIZON] = instant

    @property
    def last_sign(self) -> float:
        """The monotonic instant at which the run last showed life, `UNWATCHED` or `INACTIVE`.

        The task's process writes it; the main process only that the run is inactive.
        """
        return self._cells[self._first + LAST_SIGN]

    @last_sign.setter
    def last_sign(self, instant: float) -> None:
        if not self.over:  # or the row may be another lease's
            self._cells[self._first + LAST_SIGN] = instant

    def tell_inactive(self) -> None:
        """The run was silent for too long. The main process."""
        self.last_sign = INACTIVE

    @property
    def requested_deadline(self) -> float:
        """The monotonic instant until which the task wants the message hidden; 0 when that was answered."""
        return self._cells[self._first + REQUESTED]

    @property
    def holds_key(self) -> bool:
        """Whether the run has the key of its exclusive task. The task's process writes it."""
        return self._cells[self._first + KEY] == self.key[1]

    @holds_key.setter
    def holds_key(self, holds: bool) -> None:
        if not self.over:  # the row may be another lease's
            self._cells[self._first + KEY] = self.key[1] if holds else 0.0

    @property
    def retries(self) -> int | None:
        """How many attempts came before, as its key's store knows; `None`: nobody has asked that."""
        retries = self._cells[self._first + RETRIES]
        return None if retries < 0 else int(retries)

    @retries.setter
    def retries(self, retries: int) -> None:
        if not self.over:  # the row may be another lease's
            self._cells[self._first + RETRIES] = retries

    def renew(self, deadline: float, horizon: float) -> None:
        """The message was received, perhaps once more: it is hidden until `deadline`. The main process."""
        self.deadline, self.horizon, self.lost = deadline, horizon, False

    def request(self, until: float) -> None:
        """Ask for the message to be hidden until that monotonic instant. The task's process."""
        self._cells[self._first + REQUESTED] = until
        self._table.notify(self.key)

    def answer(self, requested: float) -> None:
        """The request for that deadline was met, or cannot be. The main process."""
        if self.requested_deadline == requested:  # and the task has not requested more meanwhile
            self._cells[self._first + REQUESTED] = 0.0

    def end(self) -> None:
        """The delivery is settled: the row is free. The main process."""
        self._table.free(self.key)


class LeaseTableView:
    """The table as seen from a process that did not inherit it.

    Args:
        fd: the shared memory.
    """

    def __init__(self, fd: int) -> None:
        self.cells: memoryview[float] = memoryview(mmap.mmap(fd, BYTES)).cast("d")

    @property
    def stopping(self) -> bool:
        """Whether the worker's shutdown has begun."""
        return self.cells[STOPPING] != 0

    @property
    def store_answers_since(self) -> float:
        """Since which monotonic instant the store of exclusive keys answers; infinite while it does not."""
        return self.cells[STORE_ANSWERS_SINCE]

    def lease(self, key: LeaseKey) -> Lease:
        """The lease of that key, to be read. Any process."""
        return Lease(self, key)

    def notify(self, key: LeaseKey) -> None:
        """There is a request, which the worker finds by itself."""

    def free(self, key: LeaseKey) -> None:
        """Rows are the worker's to free."""


class LeaseTable(LeaseTableView):
    """The table itself. Made in the main process, before its pool forks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._fd, self.name = _shared_memory()
        super().__init__(self._fd)
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # The main process's alone. No lock guards them: each change of them is atomic.
        self._taken: dict[LeaseKey, tuple[Lease, Callable[[float], None]]] = {}
        self._free: list[int] = []
        self._unused = iter(range(ROWS))
        self._generations = itertools.count(1.0)

    def stop(self, *, stopping: bool = True) -> None:
        """Tell every running task. In a signal handler: a write to memory."""
        self.cells[STOPPING] = float(stopping)

    def tell_of_store(self, answers_since: float) -> None:
        """Tell every run that is about to begin. The main process, any thread."""
        self.cells[STORE_ANSWERS_SINCE] = answers_since

    def take(
        self, deadline: float, on_request: Callable[[float], None], horizon: float = math.inf
    ) -> Lease | None:
        """A row for a task that begins to run, `None` if all are taken. The main process, any thread.

        Args:
            deadline: the monotonic instant at which its message's visibility lapses.
            on_request: is called with the instant until which the task wants the message hidden.
            horizon: the monotonic instant beyond which it cannot be hidden.
        """
        try:
            row = self._free.pop()
        except IndexError:
            if (row := next(self._unused, -1)) < 0:
                return None
        generation = next(self._generations)
        ROW.pack_into(
            self.cells, row * ROW.size, deadline, 0.0, 0.0, horizon, UNWATCHED, 0.0, -1.0, generation
        )
        lease = Lease(self, (row, generation, self.name))
        self._taken[lease.key] = lease, on_request
        return lease

    def free(self, key: LeaseKey) -> None:
        """The lease is over; harmless if it was before. The main process, any thread."""
        if self._taken.pop(key, None) is not None:
            row = key[0]
            self.cells[row * CELLS + GENERATION] = 0.0
            self._free.append(row)

    def notify(self, key: LeaseKey) -> None:
        """There is a request. The task's process, which may be the main one: then only that is passed on."""
        if os.getpid() != self.pid:
            self.wake()
        elif (taken := self._taken.get(key)) is not None:
            _pass_on(*taken)

    def wake(self) -> None:
        """Wake the main process's event loop. Any process, any thread."""
        with suppress(BlockingIOError):  # a full pipe is a woken reader
            os.write(self._pipe[1], b"\0")

    def fileno(self) -> int:
        """A descriptor that is readable when a child has a request, for the main process's event loop."""
        return self._pipe[0]

    def on_readable(self) -> None:
        """A child has a request. The main process's event loop."""
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        self.pass_on_requests()

    def pass_on_requests(self) -> None:
        """Call `on_request` for each lease that has a request. The main process, any thread."""
        for taken in self._taken.copy().values():
            _pass_on(*taken)

    def replace_stuck(self, now: float) -> None:  # noqa: ARG002 - see `supervisor.Supervised`
        """Pass on requests that the event loop does not: a warm shutdown leaves it, and it may be blocked."""
        if self._taken and os.getpid() == self.pid:
            self.pass_on_requests()


def _pass_on(lease: Lease, on_request: Callable[[float], None]) -> None:
    if until := lease.requested_deadline:
        on_request(until)


#: The worker's table, which a fork hands down: the pool's child finds it without being passed anything.
_lease_table: LeaseTable | None = None


def open_lease_table() -> LeaseTable:
    """The worker's table, made if there is none. The main process, before its pool forks."""
    global _lease_table  # noqa: PLW0603 - see there
    if _lease_table is None or _lease_table.pid != os.getpid():
        _lease_table = LeaseTable()
    _lease_table.stop(stopping=False)
    return _lease_table


def lease_table() -> LeaseTable | None:
    """The table of the worker to which this process belongs, if it belongs to one and inherited it."""
    return _lease_table


def lease_table_of(key: LeaseKey | None) -> LeaseTableView | None:
    """The table of the worker to which this process belongs, or of that lease; `None` without both."""
    return lease_table() or (None if key is None else spawned_lease_table(key))


def find_lease(key: LeaseKey | None) -> Lease | None:
    """The lease of that key; `None` if there is none, or it cannot be opened here."""
    table = lease_table_of(key)
    return table.lease(key) if table is not None and key is not None else None


def spawned_lease_table(key: LeaseKey) -> LeaseTableView | None:
    """The table of that lease, for a process that inherited none; `None` if it cannot be opened."""
    try:
        return _opened(key[2])
    except OSError:
        return None


@functools.cache
def _opened(name: str) -> LeaseTableView:
    fd = os.open(name, os.O_RDWR)
    try:
        return LeaseTableView(fd)
    finally:
        os.close(fd)


def _shared_memory() -> tuple[int, str]:
    """A descriptor, and a path by which processes of the same user can open it.

    On Linux it is gone when the processes are that have it open, however they end. Elsewhere it is a
    temporary file, removed when this process exits in order.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("celery-sqs-visibility")
        name = f"/proc/{os.getpid()}/fd/{fd}"
    else:
        fd, name = tempfile.mkstemp(prefix="celery-sqs-visibility-")
        atexit.register(_remove, name, os.getpid())
    os.truncate(fd, BYTES)
    return fd, name


def _remove(name: str, pid: int) -> None:
    if os.getpid() == pid:
        with suppress(FileNotFoundError):
            Path(name).unlink()
