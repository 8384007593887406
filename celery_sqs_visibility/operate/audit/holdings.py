"""One message in one worker, from its receive until its end, as the worker's log tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import MESSAGE_OF

#: By default.
TOLERANCE_SECONDS: Final = 1.0

RECEIVED: Final = MESSAGE_OF[events.Received]
STARTED: Final = MESSAGE_OF[events.Started]
EXTENDED: Final = MESSAGE_OF[events.Extended]
LOST: Final = MESSAGE_OF[events.Lost]

#: Events after which a worker no longer has the message, and what became of it.
ENDS: Final = {
    MESSAGE_OF[events.Hidden]: "hidden",
    MESSAGE_OF[events.Parked]: "parked",
    MESSAGE_OF[events.Renewed]: "copied",
    MESSAGE_OF[events.Released]: "given back",
    MESSAGE_OF[events.DeadLettered]: "dead letter",
    MESSAGE_OF[events.Deleted]: "deleted",
}

#: Ends that are a change of the message's visibility.
CHANGES: Final = frozenset({"hidden", "given back", "parked"})

RUN_ENDS: Final = frozenset({MESSAGE_OF[events.Finished], MESSAGE_OF[events.Failed]})

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
        tolerance: by how many seconds a line may come late, or a clock be wrong.
        began: when its run began, if it did.
        run_ended: when its run ended, if it did.
        end: what became of it, one of `ENDS`; `None` if the log does not say.
        ended: when the log told that.
        lost: whether the worker has noticed that another may have it.
        broken: names of the rules that were broken.
    """

    worker: str
    receives: list[int]
    received: float
    deadline: float = math.inf
    tolerance: float = TOLERANCE_SECONDS
    began: float | None = None
    run_ended: float | None = None
    end: str | None = None
    ended: float | None = None
    lost: bool = False
    broken: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """Note a later event."""
        at, message = event["at"], event["message"]
        if message == STARTED:
            if self.began is not None and self.run_ended is None and len(self.receives) == 1:
                self.broken.append(STARTED_TWICE)
            self.began = at
        elif message == EXTENDED:
            if self.ended is not None and at > self.ended + self.tolerance:
                self.broken.append(EXTENDED_LATE)
            self.deadline = at + event.get("seconds", math.inf)
        elif message == LOST:
            self.lost = True
        elif message in RUN_ENDS:
            self.run_ended = at
        elif (end := ENDS.get(message)) is not None:
            self._finish(end, at)

    def come_back(self, event: Mapping[str, Any]) -> None:
        """Note that it was received again while it was held: the newer receipt counts from now on."""
        self.receives.append(event["receive_count"])
        self.deadline, self.lost = deadline_of(event), False

    def _finish(self, end: str, at: float) -> None:
        if end in CHANGES and not self.lost and at > self.deadline + self.tolerance:
            self.broken.append(CHANGED_LATE)
        if self.end is None or end == "dead letter":  # which is deleted, too
            self.end, self.ended = end, at
        if self.run_ended is None and self.began is not None:
            self.run_ended = at


def deadline_of(received: Mapping[str, Any]) -> float:
    """When the visibility timeout of a receive ends; infinity if the line does not say how long it is."""
    seconds: float = received.get("seconds") or math.inf
    return float(received["at"]) + seconds


def holdings_of(told: list[dict[str, Any]], tolerance: float = TOLERANCE_SECONDS) -> list[Holding]:
    """The holdings of one message, in the order of its receives.

    `told` are its events in the order of their time.
    """
    held: dict[str, Holding] = {}
    done: list[Holding] = []
    for event in told:
        worker = worker_of(event)
        current = held.get(worker)
        if event["message"] == RECEIVED:
            if current is not None and current.end is None:
                current.come_back(event)
                continue
            if current is not None:
                done.append(current)
            receives, at = [event["receive_count"]], event["at"]
            held[worker] = Holding(worker, receives, at, deadline_of(event), tolerance)
        elif current is not None:
            current.take(event)
    return sorted([*done, *held.values()], key=lambda one: (one.receives[0], one.received))


def worker_of(event: Mapping[str, Any]) -> str:
    """The worker's name and process, which a restart changes."""
    return f"{event.get('node', '-')} ({event.get('process', '-')})"
