"""The history of one message in one worker, from its receive to its end, according to the worker's log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from celery_sqs_visibility import events


class Worker(NamedTuple):
    """A process of a node. A restart changes it, except in some containers."""

    node: str
    process: str

    def __str__(self) -> str:
        return f"{self.node} ({self.process})"


class LogLine(NamedTuple):
    """A log line about a message. Instants are in seconds since the epoch, by the worker's clock."""

    at: float
    kind: type[events.Event]
    receipt: tuple[Worker, int]  # the number is SQS's receive count
    until: float  # the end of the event's seconds; infinity if it has none
    task_id: str | None


class End(NamedTuple):
    """How a worker's part in a message ended: where the message is then, and why it may run again."""

    place: str
    reason: str


BACK: Final = "back in SQS"
AFTER_ITS_END: Final = "delivered by SQS after its deletion"

#: Events after which a worker no longer has the message. It does not matter what the message waits for.
ENDS: Final[dict[type[events.Event], End]] = {
    events.Hidden: End(BACK, "retry"),
    events.Parked: End(BACK, "retry"),
    events.Released: End(BACK, "given back"),
    events.Renewed: End("went on as a copy", AFTER_ITS_END),
    events.DeadLettered: End("dead letter", AFTER_ITS_END),
    events.Deleted: End("done", AFTER_ITS_END),
}


@dataclass(slots=True)
class Holding:
    """What one worker did with a message. Instants are in seconds since the epoch, by the worker's clock.

    Attributes:
        receives: SQS's receive counts; more than one if the message came back while it was held.
        deadline: until when SQS hides the message; infinity if unknown.
        tolerance: by how many seconds lines may be late, or clocks differ.
        end: what became of the message; `None` if the log does not say.
        lost: whether the worker noticed that another may have the message.
    """

    worker: Worker
    received: float
    tolerance: float
    receives: list[int] = field(default_factory=list)
    deadline: float = math.inf
    began: float | None = None
    run_ended: float | None = None
    end: End | None = None
    ended: float | None = None
    lost: bool = False
    broken: list[str] = field(default_factory=list)

    def take(self, told: LogLine) -> None:
        """Add an event. After a further receive of the message, the newest receipt counts."""
        if told.kind is events.Received:
            if told.receipt[1] > max(self.receives, default=0):
                self.deadline, self.lost = told.until, False
            self.receives = sorted({*self.receives, told.receipt[1]})
        elif told.kind is events.Started:
            if self.began is not None and self.run_ended is None and len(self.receives) == 1:
                self.broken.append("started twice under one receipt")
            self.began = told.at
        elif told.kind is events.Extended:
            if self.ended is not None and told.at > self.ended + self.tolerance:
                self.broken.append("extended after its end")
            self.deadline = told.until
        elif told.kind is events.Lost:
            self.lost = True
        elif told.kind in (events.Finished, events.Failed):
            self.run_ended = told.at
        elif (end := ENDS.get(told.kind)) is not None:
            self._finish(end, told.at)

    def _finish(self, end: End, at: float) -> None:
        if end.place == BACK and not self.lost and at > self.deadline + self.tolerance:
            self.broken.append("changed after its deadline")
        if self.end is None:  # copies and dead letters are followed by a delete
            self.end, self.ended = end, at
        if self.run_ended is None and self.began is not None:
            self.run_ended = at


def holdings_of(history: list[LogLine], tolerance: float) -> list[Holding]:
    """The holdings of one message, in the order of its receives. `history` must be sorted by time."""
    came_back = {each.receipt for each in history if each.kind is events.Superseded}
    holdings: list[Holding] = []
    by_receipt: dict[tuple[Worker, int], Holding] = {}
    for told in history:
        if told.kind is events.Received:
            worker, count = told.receipt
            held = next((each for each in reversed(holdings) if each.worker == worker), None)
            if not held or held.end or not (told.receipt in came_back or count <= held.receives[-1]):
                held = Holding(worker, told.at, tolerance)
                holdings.append(held)
            by_receipt[told.receipt] = held
        if (holding := by_receipt.get(told.receipt)) is not None:
            holding.take(told)
    return sorted(holdings, key=lambda one: (one.receives[-1], one.received))
