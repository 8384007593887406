"""Which objects were imported: what makes a second delivery of a message harmless.

SQS delivers at least once, and S3 notifies at least once, so the same object will arrive again some day. Its
record says what to do then, and is changed in a transaction, so that of two workers only one gets it.
"""

from __future__ import annotations

import enum
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

#: Seconds without a sign of life after which whoever was processing an object is taken for dead.
PROCESS_TIMEOUT = 60.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    object TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('unprocessed', 'processing', 'processed')),
    taken_until REAL NOT NULL,
    place INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (
    object TEXT NOT NULL, line INTEGER NOT NULL, number TEXT NOT NULL, cents INTEGER NOT NULL,
    PRIMARY KEY (object, line)
);
"""

#: Line number, order number, cents.
Order = tuple[int, str, int]


class Claim(enum.Enum):
    OURS = "ours to process"
    TAKEN = "another worker is processing it"
    PROCESSED = "it was processed before"


class Records:
    """States of objects, and the orders that were in them. Every method is a transaction of its own."""

    def __init__(self, path: str, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        with closing(sqlite3.connect(path, timeout=30)) as database:
            database.executescript(SCHEMA)

    def claim(self, name: str, seconds: float) -> Claim:
        """Begin to process an object, unless it is done, or somebody alive is at it.

        Args:
            name: of the object.
            seconds: how long our message stays hidden, `self.visibility.remaining()`. The record is ours for
                no longer, and for `PROCESS_TIMEOUT` at the most. So one clock decides both: if we die, the
                object is free by the time its message comes back.
        """
        with self._transaction() as database:
            state, taken_until, _ = self._record(database, name)
            if state == "processed":
                return Claim.PROCESSED
            if state == "processing" and self._now() < taken_until:
                return Claim.TAKEN
            self._set(database, name, "processing", seconds)
            return Claim.OURS

    def keep(self, name: str, orders: Iterable[Order], place: int, seconds: float) -> None:
        """Store the orders up to that line, and hold the record for `seconds` from now, as `claim` does.

        The same orders twice are stored once.
        """
        with self._transaction() as database:
            rows = [(name, *order) for order in orders]
            database.executemany("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)", rows)
            self._set(database, name, "processing", seconds, place)

    def kept(self, name: str) -> tuple[int, int]:
        """How many orders were stored so far, and our place: the last line that need not be read again."""
        with self._transaction() as database:
            query = "SELECT count(*) FROM orders WHERE object = ?"
            (orders,) = database.execute(query, (name,)).fetchone()
            _, _, place = self._record(database, name)
            return orders, place

    def finish(self, name: str) -> None:
        with self._transaction() as database:
            self._set(database, name, "processed")

    def give_back(self, name: str) -> None:
        """Have the next delivery go on from its place, without waiting for us to be taken for dead."""
        with self._transaction() as database:
            self._set(database, name, "unprocessed")

    def state(self, name: str) -> str:
        with self._transaction() as database:
            return self._record(database, name)[0]

    def left(self) -> list[str]:
        """Objects that nobody processes, though a run began: their workers died, or lost their messages."""
        with self._transaction() as database:
            query = (
                "SELECT object FROM records WHERE state = 'processing' AND taken_until <= ? ORDER BY object"
            )
            return [name for (name,) in database.execute(query, (self._now(),))]

    def orders(self, name: str) -> list[Order]:
        with self._transaction() as database:
            return database.execute(
                "SELECT line, number, cents FROM orders WHERE object = ? ORDER BY line", (name,)
            ).fetchall()

    def _record(self, database: sqlite3.Connection, name: str) -> tuple[str, float, int]:
        query = "SELECT state, taken_until, place FROM records WHERE object = ?"
        return database.execute(query, (name,)).fetchone() or ("unprocessed", 0.0, 0)

    def _set(
        self, database: sqlite3.Connection, name: str, state: str, seconds: float = 0, place: int = 0
    ) -> None:
        database.execute(
            # Never back from processed, nor to an earlier time: whoever was taken for dead may go on.
            "INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (object) DO UPDATE SET "
            "state = CASE state WHEN 'processed' THEN state ELSE excluded.state END, "
            "taken_until = max(taken_until, excluded.taken_until), place = max(place, excluded.place)",
            (name, state, self._now() + min(seconds, PROCESS_TIMEOUT), place),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as database:
            # IMMEDIATE: what we read stays true until we have written.
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
