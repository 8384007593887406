"""What the capacity for messages is made of: reservations, those who wait for one, and what is held."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakSet


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Capacity for the messages of one poll."""

    queue: str
    fifo: bool
    messages: int  # 1 to 10
    wait: int  # seconds that the poll may wait for them
    since: float  # the monotonic instant at which the capacity was reserved


@dataclass(slots=True, eq=False)
class Waiter:
    """A queue that wants to be polled, and its reservation once there is one."""

    queue: str
    fifo: bool
    changed: threading.Condition  # of the capacity's lock: there is a reservation, or a reason to give up
    reservation: Reservation | None = None


@dataclass(slots=True)
class Held:
    """Messages that are held, and runs whose messages were settled when they began."""

    messages: int = 0
    runs: WeakSet[object] = field(default_factory=WeakSet)

    @property
    def occupied(self) -> int:
        """Messages and runs together."""
        return self.messages + len(self.runs)


class AskedFor:
    """What the polls in flight ask for. Not thread-safe: the capacity locks.

    Attributes:
        polls: how many are in flight, by queue.
        likely: the reservations of those that should bring what they ask for.
        expected: messages that these ask for.
        fifo_expected: those of FIFO queues among them.
        unlikely: messages that the other polls ask for, by queue.
        messages: those that all polls ask for, by queue.
    """

    def __init__(self) -> None:
        self._all: set[Reservation] = set()
        self.polls: Counter[str] = Counter()
        self.likely: set[Reservation] = set()
        self.expected = 0
        self.fifo_expected = 0
        self.unlikely: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def add(self, reservation: Reservation, *, likely: bool) -> None:
        """A poll begins."""
        self._all.add(reservation)
        self.polls[reservation.queue] += 1
        self.messages[reservation.queue] += reservation.messages
        if likely:
            self.likely.add(reservation)
            self.expected += reservation.messages
            self.fifo_expected += reservation.messages if reservation.fifo else 0
        else:
            self.unlikely[reservation.queue] += reservation.messages

    def doubt(self, reservation: Reservation) -> None:
        """The poll is not likely to bring anything; harmless if that is known."""
        if reservation in self.likely:
            self.likely.remove(reservation)
            self.expected -= reservation.messages
            self.fifo_expected -= reservation.messages if reservation.fifo else 0
            self.unlikely[reservation.queue] += reservation.messages

    def remove(self, reservation: Reservation) -> None:
        """The poll is over; harmless if nobody knows of it any more."""
        if reservation not in self._all:
            return
        self._all.remove(reservation)
        self.doubt(reservation)
        queue = reservation.queue
        self.unlikely[queue] -= reservation.messages
        self.messages[queue] -= reservation.messages
        self.polls[queue] -= 1
        if not self.polls[queue]:
            del self.polls[queue], self.unlikely[queue], self.messages[queue]
