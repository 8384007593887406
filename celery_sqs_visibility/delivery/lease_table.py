"""Leases of running tasks: a few numbers in shared memory, through which processes of a pool see them.

A child of the pool gets a request once. What happens to the message afterwards only the worker's main process
knows. So it keeps a table, created before the pool forks, with a row of eight numbers for each running task.
The main process writes the row and the child reads it, except for the numbers with which the child asks for
more time, shows life, says whether it has the key of its exclusive task, and counts earlier attempts. The
processes share no lock. The child only ever sends a byte, which means "there is a request".

A forked child inherits the table. A spawned child, a fresh interpreter, opens it by its name, which is part
of the lease's key. It has no pipe, so the supervisor checks for its requests twice a second.
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

# The numbers of a row, all floats, so that each is read and written atomically. The generation is written
# last: until then the row belongs to no lease.
DEADLINE, LOST, REQUESTED, HORIZON, LAST_SIGN, KEY, RETRIES, GENERATION = range(8)
CELLS: Final = 8
ROW: Final = Struct(f"{CELLS}d")

#: Special values of the last sign of life: the run has no timeout; it was silent for too long.
UNWATCHED: Final = 0.0
INACTIVE: Final = -1.0

#: How many tasks may have a row at once. Only rows that were used take up memory.
ROWS: Final = 65_536

#: After the rows: whether the worker is stopping, and since when the store of exclusive keys answers.
STOPPING: Final = ROWS * CELLS
STORE_ANSWERS_SINCE: Final = STOPPING + 1
BYTES: Final = (STORE_ANSWERS_SINCE + 1) * 8


class Lease:
    """A running task's lease, as seen from one process.

    Once the delivery is settled, the lease is over and reads as lost. Its row may then belong to another
    lease, so a value counts only if the lease is not over after reading it.
    """

    __slots__ = ("_cells", "_first", "_table", "key")

    def __init__(self, table: LeaseTableView, key: LeaseKey) -> None:
        self.key = key
        self._table = table
        self._cells = table.cells
        self._first = key[0] * CELLS

    @property
    def over(self) -> bool:
        """Whether the delivery is settled."""
        return self._cells[self._first + GENERATION] != self.key[1]

    @property
    def deadline(self) -> float:
        """The monotonic instant at which the visibility timeout ends. Written by the main process."""
        return self._cells[self._first + DEADLINE]

    @deadline.setter
    def deadline(self, instant: float) -> None:
        self._cells[self._first + DEADLINE] = instant

    @property
    def lost(self) -> bool:
        """Whether another worker may have the message. Written by the main process."""
        return self._cells[self._first + LOST] != 0 or self.over

    @lost.setter
    def lost(self, lost: bool) -> None:
        self._cells[self._first + LOST] = float(lost)

    @property
    def horizon(self) -> float:
        """The monotonic instant at which SQS's 12 hours end. Written by the main process."""
        return self._cells[self._first + HORIZON]

    @horizon.setter
    def horizon(self, instant: float) -> None:
        self._cells[self._first + HORIZON] = instant

    @property
    def last_sign(self) -> float:
        """The monotonic instant at which the run last showed life, `UNWATCHED` or `INACTIVE`.

        The task's process writes it; the main process only writes `INACTIVE`.
        """
        return self._cells[self._first + LAST_SIGN]

    @last_sign.setter
    def last_sign(self, instant: float) -> None:
        if not self.over:  # otherwise the row may be another lease's
            self._cells[self._first + LAST_SIGN] = instant

    def tell_inactive(self) -> None:
        """Tell the run that it was silent for too long. The main process."""
        self.last_sign = INACTIVE

    @property
    def requested_deadline(self) -> float:
        """The monotonic instant until which the task wants the message hidden; 0 once that was answered."""
        return self._cells[self._first + REQUESTED]

    @property
    def holds_key(self) -> bool:
        """Whether the run has the key of its exclusive task. Written by the task's process."""
        return self._cells[self._first + KEY] == self.key[1]

    @holds_key.setter
    def holds_key(self, holds: bool) -> None:
        if not self.over:  # the row may be another lease's
            self._cells[self._first + KEY] = self.key[1] if holds else 0.0

    @property
    def retries(self) -> int | None:
        """How many attempts came before, according to the store of the key; `None` if it was not asked."""
        retries = self._cells[self._first + RETRIES]
        return None if retries < 0 else int(retries)

    @retries.setter
    def retries(self, retries: int) -> None:
        if not self.over:  # the row may be another lease's
            self._cells[self._first + RETRIES] = retries

    def renew(self, deadline: float, horizon: float) -> None:
        """Note that the message was received again, and is hidden until `deadline`. The main process."""
        self.deadline, self.horizon, self.lost = deadline, horizon, False

    def request(self, until: float) -> None:
        """Ask to hide the message until that monotonic instant. The task's process."""
        self._cells[self._first + REQUESTED] = until
        self._table.notify(self.key)

    def answer(self, requested: float) -> None:
        """Note that the requested deadline is reached, or can't be. The main process."""
        if self.requested_deadline == requested:  # the task has not asked for more meanwhile
            self._cells[self._first + REQUESTED] = 0.0

    def end(self) -> None:
        """End the lease of a settled delivery, and free its row. The main process."""
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
        """The monotonic instant since which the store of exclusive keys answers; infinity if it doesn't."""
        return self.cells[STORE_ANSWERS_SINCE]

    def lease(self, key: LeaseKey) -> Lease:
        """The lease of that key, for reading. Any process."""
        return Lease(self, key)

    def notify(self, key: LeaseKey) -> None:
        """Do nothing: the worker finds the request by itself."""

    def free(self, key: LeaseKey) -> None:
        """Do nothing: the worker frees its rows."""


class LeaseTable(LeaseTableView):
    """The table itself. Created in the main process, before its pool forks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._fd, self.name = _shared_memory()
        super().__init__(self._fd)
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # Of the main process. No lock guards them: each change is atomic.
        self._taken: dict[LeaseKey, tuple[Lease, Callable[[float], None]]] = {}
        self._free: list[int] = []
        self._unused = iter(range(ROWS))
        self._generations = itertools.count(1.0)

    def stop(self, *, stopping: bool = True) -> None:
        """Tell every running task that the worker stops. Safe in a signal handler: only writes to memory."""
        self.cells[STOPPING] = float(stopping)

    def tell_of_store(self, answers_since: float) -> None:
        """Tell new runs since when the store answers. The main process, any thread."""
        self.cells[STORE_ANSWERS_SINCE] = answers_since

    def take(
        self, deadline: float, on_request: Callable[[float], None], horizon: float = math.inf
    ) -> Lease | None:
        """Take a row for a run that begins; `None` if none is free. The main process, any thread.

        Args:
            deadline: the monotonic instant at which the visibility timeout of its message ends.
            on_request: called with the instant until which the task wants the message hidden.
            horizon: the monotonic instant beyond which the message can't be hidden.
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
        """Free the row of a lease. Idempotent. The main process, any thread."""
        if self._taken.pop(key, None) is not None:
            row = key[0]
            self.cells[row * CELLS + GENERATION] = 0.0
            self._free.append(row)

    def notify(self, key: LeaseKey) -> None:
        """Tell the worker of a request; in the main process, pass on only this one. The task's process."""
        if os.getpid() != self.pid:
            self.wake()
        elif (taken := self._taken.get(key)) is not None:
            _pass_on(*taken)

    def wake(self) -> None:
        """Wake the event loop of the main process. Any process, any thread."""
        with suppress(BlockingIOError):  # the pipe is full, so the reader is awake
            os.write(self._pipe[1], b"\0")

    def fileno(self) -> int:
        """A descriptor for the main process's event loop, readable when a child has a request."""
        return self._pipe[0]

    def on_readable(self) -> None:
        """Pass on the requests of children. The main process's event loop."""
        with suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)
        self.pass_on_requests()

    def pass_on_requests(self) -> None:
        """Call `on_request` for each lease that has a request. The main process, any thread."""
        for taken in self._taken.copy().values():
            _pass_on(*taken)

    def replace_stuck(self, now: float) -> None:  # noqa: ARG002 - as `supervisor.Supervised`
        """Pass on requests that the event loop misses: it ends at a warm shutdown, and may be blocked."""
        if self._taken and os.getpid() == self.pid:
            self.pass_on_requests()


def _pass_on(lease: Lease, on_request: Callable[[float], None]) -> None:
    if until := lease.requested_deadline:
        on_request(until)


#: The worker's table. A forked child of the pool inherits it.
_lease_table: LeaseTable | None = None


def open_lease_table() -> LeaseTable:
    """Return the worker's table, created if necessary. The main process, before its pool forks."""
    global _lease_table  # noqa: PLW0603 - children inherit it
    if _lease_table is None or _lease_table.pid != os.getpid():
        _lease_table = LeaseTable()
    _lease_table.stop(stopping=False)
    return _lease_table


def lease_table() -> LeaseTable | None:
    """The table of this process's worker, if this process created or inherited one."""
    return _lease_table


def lease_table_of(key: LeaseKey | None) -> LeaseTableView | None:
    """The table of this process's worker, or else that of the lease; `None` if there is neither."""
    return lease_table() or (None if key is None else spawned_lease_table(key))


def find_lease(key: LeaseKey | None) -> Lease | None:
    """The lease of that key; `None` without a key, or if the table can't be opened here."""
    table = lease_table_of(key)
    return table.lease(key) if table is not None and key is not None else None


def spawned_lease_table(key: LeaseKey) -> LeaseTableView | None:
    """Open the table of that lease in a process that inherited none; `None` if it can't be opened."""
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
    """Create shared memory. Returns a descriptor, and a path by which processes of the same user can open it.

    On Linux it disappears with the last process that has it open, however that process ends. Elsewhere it is
    a temporary file, removed when this process exits normally.
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
