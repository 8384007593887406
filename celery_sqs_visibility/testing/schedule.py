"""Schedules of a simulation: faults of at-least-once delivery, made from a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Collection
from typing import Final

MAX_FAULTS: Final = 3

#: Delays of a message, in seconds: within a visibility timeout, hours, and longer than a day.
DELAYS: Final = (90, 3 * 3600, 13 * 3600, 30 * 3600)


class Fault(enum.Enum):
    """A fault that SQS, a worker or an operator may cause at any time."""

    DEATH = "the worker dies"
    SECOND_DELIVERY = "SQS delivers the message a second time"
    LOST_DELETE = "SQS answers the delete, and forgets it"
    LAPSE = "the worker stands still for longer than the visibility timeout"
    DELAY = "nobody receives the message for hours"
    REDRIVE = "the message goes to the dead letters, and an operator moves it back"
    DEPLOY = "a deploy ends the worker"
    OVERLAP = "another worker runs another message meanwhile"


#: Faults at the points of a run: before and after each effect, and before its message is settled.
IN_A_RUN: Final = frozenset({Fault.DEATH, Fault.SECOND_DELIVERY, Fault.LAPSE, Fault.DEPLOY})
ENDS_OF_A_WORKER: Final = frozenset({Fault.DEATH, Fault.DEPLOY})
AT_THE_END: Final = frozenset({Fault.DEATH, Fault.LOST_DELETE})
BETWEEN_RUNS: Final = frozenset({Fault.DELAY, Fault.REDRIVE})
WHEN_EMPTY: Final = frozenset({Fault.REDRIVE})

#: The share of points at which another message runs, if one waits. Schedules do not plan it: it can't happen
#: in a test with one message, whose seeds should have other faults.
OVERLAPS: Final = 1 / 4


class Schedule:
    """The faults of one seed, in order, each with the number of points to pass before it happens.

    Even seeds are one death each, at each point of a run in turn; all other schedules are random.

    Attributes:
        random: for further choices; repeats the same numbers.
        passed: number of points of runs passed so far.

    Args:
        seed: `None` for no faults.
        points: number of points of a run without faults.
        faults: the faults to choose from.
    """

    def __init__(self, seed: int | None, points: int, faults: Collection[Fault]) -> None:
        self.random = random.Random(seed or 0)  # noqa: S311 - it is to be the same each time
        self.passed = 0
        self._next: list[tuple[Fault, int]] = []
        if seed is None:
            return
        kinds = [fault for fault in Fault if fault in faults and fault is not Fault.OVERLAP]
        at, is_random = divmod(seed, 2)
        if Fault.DEATH in kinds and not is_random and at < points:
            self._next = [(Fault.DEATH, at)]
            return
        for _ in range(self.random.randint(1, MAX_FAULTS) if kinds else 0):
            fault = self.random.choice(kinds)
            later = self.random.randrange(max(1, points)) if fault in IN_A_RUN else 0
            self._next.append((fault, later))

    def due(self, possible: Collection[Fault]) -> Fault | None:
        """Pass a point. Returns the fault that happens there, if any."""
        self.passed += Fault.DEATH in possible
        fault, later = self._next[0] if self._next else (None, 0)
        if fault is None or fault not in possible:
            return None
        if later > 0:
            self._next[0] = fault, later - 1
            return None
        del self._next[0]
        return fault
