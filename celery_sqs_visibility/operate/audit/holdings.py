"""One message in one worker, from its receive until its end, as the worker's log tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Seconds by which a line may come late, or a clock be wrong.
TOLERANCE_SECONDS: Final = 1.0

#: Events after which a worker no longer has the message, and what became of it.
ENDS: Final = {
    "message hidden": "hidden",
    "message parked until it may run": "parked",
    "message goes on waiting as a copy": "copied",
    "message released": "given back",
    "message moved to the dead-letter queue": "dead letter",
    "message deleted": "deleted",
}

#: Ends that are a change of the message's visibility.
CHANGES: Final = frozenset({"hidden", "given back", "parked"})

RUN_ENDS: Final = frozenset({"task finished", "task failed"})

EXTENDED_LATE: Final = "extended after its end"
CHANGED_LATE: Final = "changed after its deadline"
STARTED_TWICE: Final = "started twice under one receipt"


@dataclass(slots=True)
class Holding:
    """What a worker did with a message. Instants are in seconds since the epoch, by the worker's clock.

    Attributes:
        worker: node and process.
        receives: SQS's counts of its receives; more than one if it came back while it was held.
        received: when it came.
        deadline: until when SQS hides it; infinity if that is not known.
        began: when its run began, if it did.
        run_ended: when its run ended, if it did.
        end: what became of it, one of `ENDS`; `None` if the log does not say.
        lost: whether the worker has noticed that another may have it.
        last: when it was last told of.
        broken: names of the rules that were broken.
    """

    worker: str
    receives: list[int]
    received: float
    deadline: float = math.inf
    began: float | None = None
    run_ended: float | None = None
    end: str | None = None
    lost: bool = False
    last: float = 0.0
    broken: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """Note a later event."""
        at, message = event["at"], event["message"]
        self.last = at
        if message == "task started":
            if self.began is not None and self.run_ended is None and len(self.receives) == 1:
                self.broken.append(STARTED_TWICE)
            self.began = at
        elif message == "message extended":
            if self.end is not None:
                self.broken.append(EXTENDED_LATE)
            self.deadline = at + event.get("seconds", math.inf)
        elif message.startswith("message lost"):
            self.lost = True
        elif message in RUN_ENDS:
            self.run_ended = at
        elif (end := ENDS.get(message)) is not None:
            self._finish(end, at)

    def come_back(self, event: Mapping[str, Any]) -> None:
        """Note that it was received again while it was held: the newer receipt counts from now on."""
        self.receives.append(event["receive_count"])
        self.deadline, self.lost, self.last = deadline_of(event), False, event["at"]

    def _finish(self, end: str, at: float) -> None:
        if end in CHANGES and not self.lost and at > self.deadline + TOLERANCE_SECONDS:
            self.broken.append(CHANGED_LATE)
        if self.end is None or end == "dead letter":  # which is deleted, too
            self.end = end
        if self.run_ended is None and self.began is not None:
            self.run_ended = at


def deadline_of(received: Mapping[str, Any]) -> float:
    """When the visibility timeout of a receive ends; infinity if the line does not say how long it is."""
    seconds: float = received.get("seconds") or math.inf
    return float(received["at"]) + seconds


def holdings_of(events: list[dict[str, Any]]) -> list[Holding]:
    """The holdings of one message, in the order of its receives. `events` are in the order of the log."""
    held: dict[str, Holding] = {}
    done: list[Holding] = []
    for event in events:
        worker = worker_of(event)
        current = held.get(worker)
        if event["message"] == "message received":
            if current is not None and current.end is None:
                current.come_back(event)
                continue
            if current is not None:
                done.append(current)
            held[worker] = Holding(
                worker, [event["receive_count"]], event["at"], deadline_of(event), last=event["at"]
            )
        elif current is not None:
            current.take(event)
    return sorted([*done, *held.values()], key=lambda one: (one.receives[0], one.received))


def worker_of(event: Mapping[str, Any]) -> str:
    """The worker's name and process, which a restart changes."""
    return f"{event.get('node', '-')} ({event.get('process', '-')})"
