"""Liveness and readiness of a worker.

A worker is live while each part does its work in time. An outage of SQS, a wait for its queues, a full pool
or a shutdown does not count against it, because a restart would not help. It is ready while it receives and
runs messages.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: A thread hangs if a request, or the messages of a poll, take it longer. SQS's client gives up well before
#: that, so the thread waits for something without a timeout: a name to be resolved, credentials, a lock.
HUNG_AFTER_SECONDS: Final = 20.0

#: Celery's event loop turns at least every ten seconds (kombu/asynchronous/hub.py: `fire_timers`). The
#: supervisor checks twice a second, and replaces threads that hang.
LATE_SECONDS: Final = 30.0

#: A poll that hangs is abandoned, and another thread polls, up to 20 times, before polling stops altogether.
POLL_LATE_SECONDS: Final = 120.0

#: A new process of the pool may import for a while before it takes a run.
HANDOVER_LATE_SECONDS: Final = 60.0

#: Decoding may take long if a `message_adapter` makes requests.
FORGOTTEN_SECONDS: Final = 120.0


class WorkerPhase(enum.Enum):
    """Stages of a worker, from its start to its end."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True)
class PollingFacts:
    """The polling of a queue."""

    queue: str
    late: float = 0.0  # seconds
    accepted: bool = True  # whether SQS ever accepted a poll
    error: str = ""  # the latest, in an outage
    paused: bool = False  # by an operator: no poll is due
    hidden: int = 0  # messages hidden for a retry, an ETA or a key, up to `polling.MAX_EXPECTED`


@dataclass(frozen=True)
class DutyFacts:
    """A duty of threads, such as "extends messages", and for how many seconds it has been late."""

    does: str
    late: float = 0.0


@dataclass(frozen=True)
class BrakeFacts:
    """The state of a brake: see `events.BrakeChanged`. `waiting` messages are held for it."""

    brake: str
    stage: str
    seconds: float
    tries: int
    waiting: int
    error: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WaitingFacts:
    """Tasks that wait for the pool while it runs nothing.

    Attributes:
        begun: total number of runs that have begun.
        tasks: the ids of the waiting tasks.
    """

    begun: int
    tasks: frozenset[str]

    def still(self, earlier: WaitingFacts) -> bool:
        """Returns whether a task that waited earlier still waits, and none has begun since."""
        return self.begun == earlier.begun and bool(self.tasks & earlier.tasks)


@dataclass(frozen=True)
class WorkerFacts:
    """A worker at one instant.

    Attributes:
        phase: its stage.
        loop: seconds since Celery's event loop last turned; 0 while a task has the main thread (solo).
        processes: number of live processes of the pool; `None` in a pool without processes.
        polls: the polling of each consumed queue.
        duties: those of its other threads.
        wanted_processes: the number that autoscaling wants; `None` if unknown.
        handover: seconds for which tasks have waited for a pool that ran none, as far as probes saw.
        forgotten: seconds for which it has held only messages that no part of it will run or give back.
        brakes: of its tasks.
    """

    phase: WorkerPhase
    loop: float = 0.0
    processes: int | None = None
    polls: tuple[PollingFacts, ...] = ()
    duties: tuple[DutyFacts, ...] = ()
    wanted_processes: int | None = None
    handover: float = 0.0
    forgotten: float = 0.0
    brakes: tuple[BrakeFacts, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """An answer to a probe, with the reason in one line."""

    ok: bool
    reason: str


def liveness(facts: WorkerFacts) -> Verdict:
    """Judge whether the worker makes progress; if not, a restart helps."""
    if facts.phase is not WorkerPhase.RUNNING:
        return Verdict(ok=True, reason=f"live: {facts.phase.value}")
    if trouble := "; ".join(_stuck(facts)):
        return Verdict(ok=False, reason=f"stuck: {trouble}")
    return Verdict(ok=True, reason=f"live: {_activity(facts)}")


def readiness(facts: WorkerFacts) -> Verdict:
    """Judge whether the worker runs messages that arrive."""
    alive = liveness(facts)
    if not alive.ok:
        return alive
    if facts.phase is WorkerPhase.STARTING:
        return _not_ready("it has not connected; it waits for its queues, or for SQS")
    if facts.phase is WorkerPhase.STOPPING:
        return _not_ready("it is shutting down")
    if trouble := "; ".join(_waits(facts)):
        return _not_ready(trouble)
    return Verdict(ok=True, reason=f"ready: {_activity(facts)}")


def _not_ready(why: str) -> Verdict:
    return Verdict(ok=False, reason=f"not ready: {why}")


def _stuck(facts: WorkerFacts) -> Iterator[str]:
    if facts.loop > LATE_SECONDS:
        yield f"Celery's event loop has been blocked for {facts.loop:.0f} s"
    if facts.processes == 0 and facts.wanted_processes != 0:
        yield "no process of the pool is alive"
    if facts.handover > HANDOVER_LATE_SECONDS:
        yield f"tasks have been waiting for the pool for {facts.handover:.0f} s, and it runs none"
    if facts.forgotten > FORGOTTEN_SECONDS:
        yield f"for {facts.forgotten:.0f} s it has held messages that Celery never got, and run nothing"
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
    brakes = [
        f"; brake {each.brake!r} has been on for {each.seconds:.0f} s, and {each.waiting} "
        f"{'message waits' if each.waiting == 1 else 'messages wait'}"
        for each in facts.brakes
        if each.stage == "on"
    ]
    return f"consumes {count} {'queue' if count == 1 else 'queues'}{but}{''.join(brakes)}"
