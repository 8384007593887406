"""The lease of a running task: its row in shared memory, see `lease_table`."""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

# The numbers of a row, all floats, so that each is read and written whole. The generation is written last:
# until it stands there the row is nobody's.
DEADLINE, LOST, REQUESTED, HORIZON, LAST_SIGN, KEY, RETRIES, GENERATION = range(8)
CELLS: Final = 8
ROW: Final = Struct(f"{CELLS}d")

#: Last signs of life that are no instants: the run need not show life; it was silent for too long.
UNWATCHED: Final = 0.0
INACTIVE: Final = -1.0

#: A row, which of its leases (its generation, since rows are used again), and the name of the table.
LeaseKey = tuple[int, float, str]


class Rows(Protocol):
    """The table that a row is in."""

    cells: memoryview[float]

    def notify(self, key: LeaseKey) -> None:
        """The task of that lease has requested more time."""

    def free(self, key: LeaseKey) -> None:
        """The lease is over."""


class Lease:
    """A running task's lease, as seen from one process.

    When the delivery is settled the lease is over, and reads as lost. Its row may be another lease's by then:
    what was read counts only if the lease is not over after it was read.
    """

    __slots__ = ("_cells", "_first", "_table", "key")

    def __init__(self, table: Rows, key: LeaseKey) -> None:
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
