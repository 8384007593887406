"""Whether a worker lives, and whether it is ready: what its parts say of their progress, judged.

A worker lives while each part does what is due. It lives during an outage of SQS, which a restart does not
mend, while it waits for its queues, while its pool is full and while it shuts down. It is ready while it may
expect messages, and runs them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: Celery's event loop comes round every ten seconds at the least (kombu/asynchronous/hub.py: `fire_timers`);
#: the supervisor does twice a second, and replaces stuck threads of the others after 20 s.
LATE_SECONDS: Final = 30.0

#: A poll that hangs is given up, and another thread polls, up to 20 times, before polls stop altogether.
POLL_LATE_SECONDS: Final = 120.0


class Phase(enum.Enum):
    """Where a worker is between its start and its end."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True)
class PollingFacts:
    """The polling of a queue: for how many seconds it has been late, whether SQS has accepted it ever.

    While somebody has `paused` it none is due.
    """

    queue: str
    late: float = 0.0
    accepted: bool = True
    error: str = ""  # the latest, in an outage
    paused: bool = False


@dataclass(frozen=True)
class DutyFacts:
    """What threads do, as in "extends messages", and for how many seconds that has been due, and not done."""

    does: str
    late: float = 0.0


@dataclass(frozen=True)
class WorkerFacts:
    """A worker at one instant.

    Attributes:
        phase: between its start and its end.
        loop: seconds since Celery's event loop last came round; 0 where a task has the main thread (solo).
        processes: how many of the pool live; `None` in a pool without.
        polls: of each queue that it consumes.
        duties: of its other threads.
    """

    phase: Phase
    loop: float = 0.0
    processes: int | None = None
    polls: tuple[PollingFacts, ...] = ()
    duties: tuple[DutyFacts, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether all is well, and in a line why, or what is not."""

    ok: bool
    reason: str


def liveness(facts: WorkerFacts) -> Verdict:
    """Whether the worker makes progress; if not, a restart helps."""
    if facts.phase is not Phase.RUNNING:
        return Verdict(ok=True, reason=f"live: {facts.phase.value}")
    if trouble := "; ".join(_stuck(facts)):
        return Verdict(ok=False, reason=f"stuck: {trouble}")
    return Verdict(ok=True, reason=f"live: {_activity(facts)}")


def readiness(facts: WorkerFacts) -> Verdict:
    """Whether messages that arrive are run soon."""
    alive = liveness(facts)
    if not alive.ok:
        return alive
    if facts.phase is Phase.STARTING:
        return _not_ready("it has not connected; it waits for its queues, or for SQS")
    if facts.phase is Phase.STOPPING:
        return _not_ready("it shuts down")
    if trouble := "; ".join(_waits(facts)):
        return _not_ready(trouble)
    return Verdict(ok=True, reason=f"ready: {_activity(facts)}")


def _not_ready(why: str) -> Verdict:
    return Verdict(ok=False, reason=f"not ready: {why}")


def _stuck(facts: WorkerFacts) -> Iterator[str]:
    if facts.loop > LATE_SECONDS:
        yield f"Celery's main thread has not come round its event loop for {facts.loop:.0f} s"
    if facts.processes == 0:
        yield "no process of the pool is alive"
    for poll in facts.polls:
        if poll.late > POLL_LATE_SECONDS:
            yield f"the thread that polls queue {poll.queue!r} is {poll.late:.0f} s late"
    for duty in facts.duties:
        if duty.late > LATE_SECONDS:
            yield f"the thread that {duty.does} is {duty.late:.0f} s late"


def _waits(facts: WorkerFacts) -> Iterator[str]:
    for poll in facts.polls:
        if poll.paused:
            continue
        if poll.error:
            yield f"cannot receive from queue {poll.queue!r}: {poll.error}"
        elif not poll.accepted:
            yield f"the first poll of queue {poll.queue!r} has not come back"


def _activity(facts: WorkerFacts) -> str:
    count = len(facts.polls)
    paused = [repr(poll.queue) for poll in facts.polls if poll.paused]
    but = f", of which {', '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused" if paused else ""
    return f"consumes {count} {'queue' if count == 1 else 'queues'}{but}"
