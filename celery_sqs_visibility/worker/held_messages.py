"""What a worker holds, for people: each message's state, and what the worker's end would do to it now."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.core.delivery import Delivery, State, Wait

_WAITS: Final = {Wait.PAYLOAD: "payload", Wait.START: "eta or rate", Wait.FAR_START: "rate"}


class Fate(enum.Enum):
    """What a signal to the worker would lead to."""

    ENDS = "ends in time"
    SENT_ON = "sent on"  # a copy or a dead letter takes its place
    GIVEN_BACK = "given back"  # it has not begun
    RUNS_AGAIN = "runs again"
    DEAD_LETTER = "dead letter"  # SQS moves it, instead of handing it out once more
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Moment:
    """When a worker is asked, and how long its runs may take.

    Attributes:
        monotonic: now.
        wall: the same instant, in seconds since the epoch.
        runs_have: seconds that runs have after SIGTERM.
        usual: seconds that a run lasted lately, on average; `None` if unknown.
    """

    monotonic: float
    wall: float
    runs_have: float
    usual: float | None = None

    def epoch(self, instant: float) -> float:
        """The monotonic instant in seconds since the epoch."""
        return round(self.wall + instant - self.monotonic, 3)


def begun_at(delivery: Delivery, at: Moment) -> float:
    """When it began, or was received: what is held longest comes first by this."""
    return delivery.facts.received if delivery.began is None else at.epoch(delivery.began)


def described(delivery: Delivery, at: Moment, time_limit: float | None = None) -> dict[str, Any]:
    """The facts of a held message, or of a run whose message was deleted when it began.

    `time_limit` is the run's own, in seconds, where the pool keeps it. Times are in seconds since the epoch.
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
        "waits_for": _WAITS[delivery.wait] if delivery.wait else None,
        "received": facts.received,
        "began": None if delivery.began is None else at.epoch(delivery.began),
        "lease_ends": at.epoch(delivery.deadline) if delivery.held else None,
        "horizon": at.epoch(delivery.horizon) if delivery.held else None,
        "lost": delivery.lost,
        "at_sigterm": at_sigterm(delivery, at, time_limit).value,
        "at_sigkill": at_sigkill(delivery).value,
    }


def at_sigterm(delivery: Delivery, at: Moment, time_limit: float | None = None) -> Fate:
    """What a warm shutdown that began now would do: see `Drain`. A run's own end is an estimate."""
    if delivery.state is State.COPYING:
        return Fate.SENT_ON
    if delivery.state is State.HELD:
        return Fate.GIVEN_BACK if delivery.may_return else Fate.DEAD_LETTER
    return Fate.ENDS if _ends_in_time(delivery, at, time_limit) else at_sigkill(delivery)


def at_sigkill(delivery: Delivery) -> Fate:
    """What happens to it, once its lease ends, if the worker is gone now."""
    if not delivery.held:
        return Fate.LOST  # it was acknowledged when its run began
    return Fate.RUNS_AGAIN if delivery.may_return else Fate.DEAD_LETTER


def _ends_in_time(delivery: Delivery, at: Moment, time_limit: float | None) -> bool:
    ran = 0.0 if delivery.began is None else at.monotonic - delivery.began
    if time_limit is not None and time_limit - ran <= at.runs_have:
        return True
    return at.usual is not None and ran < at.usual <= ran + at.runs_have
