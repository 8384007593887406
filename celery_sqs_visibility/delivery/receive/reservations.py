"""What the capacity for messages is made of: reservations, those who wait for one, and what is held."""

from __future__ import annotations

import threading
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
