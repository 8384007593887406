"""Liveness and readiness of a worker, judged from its parts' reports of progress.

A worker is live while each part does its work in time: also during an outage of SQS, which a restart does not
end, while it waits for its queues, while its pool is full and while it shuts down. It is ready while it may
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


#: A pool's process that is replaced may import for a while before it takes a run.
HANDOVER_LATE_SECONDS: Final = 60.0

#: A message may be decoded for a while, where a `message_adapter` asks others.
FORGOTTEN_SECONDS: Final = 120.0


class Phase(enum.Enum):
    """Where a worker is between its start and its end."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True)
class PollingFacts:
    """The polling of a queue: for how many seconds it has been late, whether SQS has accepted it ever.

    While somebody has `paused` it none is due. `hidden` is the number of its messages that the worker has
    hidden for a retry, an ETA or a key, `polling.MAX_EXPECTED` at the most.
    """

    queue: str
    late: float = 0.0
    accepted: bool = True
    error: str = ""  # the latest, in an outage
    paused: bool = False
    hidden: int = 0


@dataclass(frozen=True)
class DutyFacts:
    """Duty of threads, as in "extends messages", and for how many seconds it has been late."""

    does: str
    late: float = 0.0


@dataclass(frozen=True)
class WaitingFacts:
    """Tasks that Celery wants its pool to run, at an instant at which nothing runs.

    Attributes:
        begun: how many runs have begun so far.
        tasks: their ids.
    """

    begun: int
    tasks: frozenset[str]

    def still(self, earlier: WaitingFacts) -> bool:
        """Whether a task that waited earlier still waits, and no task has begun since."""
        return self.begun == earlier.begun and bool(self.tasks & earlier.tasks)


@dataclass(frozen=True)
class WorkerFacts:
    """A worker at one instant.

    Attributes:
        phase: between its start and its end.
        loop: seconds since Celery's event loop last came round; 0 where a task has the main thread (solo).
        processes: how many of the pool live; `None` in a pool without.
        handover: seconds for which tasks have waited for a pool that ran none, as far as probes have seen.
        wanted_processes: how many it is to have, which autoscaling sets; `None` if it does not say.
        polls: of each queue that it consumes.
        duties: of its other threads.
        forgotten: seconds for which it has held messages alone that no part of it will run or give back.
    """

    phase: Phase
    loop: float = 0.0
    processes: int | None = None
    polls: tuple[PollingFacts, ...] = ()
    duties: tuple[DutyFacts, ...] = ()
    wanted_processes: int | None = None
    handover: float = 0.0
    forgotten: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether all is well, and the reason in one line."""

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
    if facts.processes == 0 and facts.wanted_processes != 0:
        yield "no process of the pool is alive"
    if facts.handover > HANDOVER_LATE_SECONDS:
        yield f"tasks have been waiting for the pool for {facts.handover:.0f} s, and it runs none"
    if facts.forgotten > FORGOTTEN_SECONDS:
        yield f"for {facts.forgotten:.0f} s it has held messages that Celery was not given, and run nothing"
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
