"""The messages a worker holds, for operators: their state, and what the worker's end would do to them."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery_sqs_visibility.core.delivery import Delivery, State, Wait

_WAITS: Final = {Wait.PAYLOAD: "payload", Wait.START: "eta or rate", Wait.FAR_START: "rate"}


class Fate(enum.Enum):
    """What ending the worker with a signal would do to a message."""

    ENDS = "ends in time"
    SENT_ON = "sent on"  # a copy or a dead letter replaces it
    GIVEN_BACK = "given back"  # it has not started
    RUNS_AGAIN = "runs again"
    DEAD_LETTER = "dead letter"  # SQS moves it instead of handing it out again
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of the question, and how long the worker's runs may take.

    Attributes:
        monotonic: now.
        wall: the same instant, in seconds since the epoch.
        runs_have: seconds that runs have after SIGTERM.
        usual: recent average duration of a run, in seconds; `None` if unknown.
        paused: names of paused tasks.
        braked: by task, the name of its brake, if that is not off.
    """

    monotonic: float
    wall: float
    runs_have: float
    usual: float | None = None
    paused: Collection[str | None] = ()
    braked: Mapping[str, str] = field(default_factory=dict)

    def epoch(self, instant: float) -> float:
        """Convert a monotonic instant to seconds since the epoch."""
        return round(self.wall + instant - self.monotonic, 3)


def begun_at(delivery: Delivery, at: Moment) -> float:
    """When it started, or was received, in seconds since the epoch: the key to sort the oldest first."""
    return delivery.facts.received if delivery.began is None else at.epoch(delivery.began)


def described(delivery: Delivery, at: Moment, time_limit: float | None = None) -> dict[str, Any]:
    """The facts of a held message, or of a run whose message was deleted when the run began.

    `time_limit` is the run's, in seconds, if the pool enforces it. Times are in seconds since the epoch.
    """
    facts = delivery.facts
    return {
        "task": facts.task,
        "task_id": facts.task_id,
        "queue": facts.queue,
        "group": facts.group,
        "message_id": facts.message_id,
        "attempt": facts.attempt,
        "receive_count": facts.receive_count,
        "receives_left": delivery.receives_left,
        "state": (delivery.state if delivery.held else State.RUNNING).name.lower(),
        "waits_for": _waits_for(delivery, at),
        "received": facts.received,
        "began": None if delivery.began is None else at.epoch(delivery.began),
        "lease_ends": at.epoch(delivery.deadline) if delivery.held else None,
        "horizon": at.epoch(delivery.horizon) if delivery.held else None,
        "lost": delivery.lost,
        "at_sigterm": at_sigterm(delivery, at, time_limit).value,
        "at_sigkill": at_sigkill(delivery).value,
    }


def _waits_for(delivery: Delivery, at: Moment) -> str | None:
    if delivery.wait in {Wait.START, Wait.FAR_START}:
        if delivery.facts.task in at.paused:
            return "resume"
        if (brake := at.braked.get(delivery.facts.task or "")) is not None:
            return f"brake {brake!r}"
    return _WAITS[delivery.wait] if delivery.wait else None


def at_sigterm(delivery: Delivery, at: Moment, time_limit: float | None = None) -> Fate:
    """What a warm shutdown (`Drain`) that begins now would do. A run's remaining time is an estimate."""
    if delivery.state is State.COPYING:
        return Fate.SENT_ON
    if delivery.state is State.HELD:
        return Fate.GIVEN_BACK if delivery.may_return else Fate.DEAD_LETTER
    return Fate.ENDS if _ends_in_time(delivery, at, time_limit) else at_sigkill(delivery)


def at_sigkill(delivery: Delivery) -> Fate:
    """What happens to the message when its lease ends, if the worker dies now."""
    if not delivery.held:
        return Fate.LOST  # it was acknowledged when its run began
    return Fate.RUNS_AGAIN if delivery.may_return else Fate.DEAD_LETTER


def _ends_in_time(delivery: Delivery, at: Moment, time_limit: float | None) -> bool:
    ran = 0.0 if delivery.began is None else at.monotonic - delivery.began
    if time_limit is not None and time_limit - ran <= at.runs_have:
        return True
    return at.usual is not None and ran < at.usual <= ran + at.runs_have
