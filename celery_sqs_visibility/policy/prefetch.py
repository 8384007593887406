"""How many messages to hold: enough to keep short tasks fed, nothing a free slot could not start at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds over which the pace is averaged.
PACE_MEMORY = 2.0

#: What was done since the pace was last unknown counts as done in at least as many seconds.
SHORTEST_PACE = 0.25

#: The pace is measured, so it wobbles; only clearly more work than Celery's own prefetch counts as more.
WORTHWHILE = 1.5

#: A task that runs that long, in seconds, is long: nothing is held that cannot be begun at once.
LONG = 1.0

#: Less is not measured, in seconds.
SHORTEST = 0.001

#: How many tasks it takes to forget how long others ran.
DURATION_MEMORY = 5

#: What "no limit" (Celery's prefetch count of 0) means here, well under SQS's 120,000 in flight.
UNLIMITED = 10_000


class Pace:
    """Tasks per second lately, exponentially weighted. Not thread-safe: its owner locks.

    Both the tasks and the time they took are weighted, so that the pace is known soon after a rest.
    """

    def __init__(self) -> None:
        self._tasks = 0.0
        self._seconds = 0.0
        self._at: float | None = None

    def note(self, now: float) -> None:
        """A task ended."""
        self._tasks, self._seconds = self._as_of(now)
        self._tasks += 1
        self._at = now

    def per_second(self, now: float) -> float:
        """Tasks per second, as of now."""
        tasks, seconds = self._as_of(now)
        return tasks / max(seconds, SHORTEST_PACE)

    def _as_of(self, now: float) -> tuple[float, float]:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        if passed > PACE_MEMORY:
            return 0.0, 0.0
        fading = math.exp(-passed / PACE_MEMORY)
        return self._tasks * fading, self._seconds * fading + PACE_MEMORY * (1 - fading)


class Duration:
    """How long tasks run lately, in seconds. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A task ran that long."""
        known = self.seconds
        self.seconds = seconds if known is None else known + (seconds - known) / DURATION_MEMORY


@dataclass(frozen=True, slots=True)
class Slots:
    """What can run at once.

    Attributes:
        number: of the pool's slots.
        prefetch_count: what Celery makes of it with `worker_prefetch_multiplier`.
    """

    number: int
    prefetch_count: int


def capacity(
    prefetch_count: int,
    slots: Slots,
    tasks_per_second: float,
    task_seconds: float | None,
    prefetch_seconds: float,
) -> int:
    """How many messages the process may hold.

    Of long tasks, and as long as nobody knows, as many as there are slots: what is held beyond them another
    worker could run. Of shorter ones up to Celery's prefetch count, of short ones more.

    Args:
        prefetch_count: Celery's, which grows with the ETA tasks that it holds in memory; 0 is unlimited.
        slots: the pool's.
        tasks_per_second: the measured pace.
        task_seconds: how long a task runs, if one has.
        prefetch_seconds: how many seconds of work to hold beyond what runs.
    """
    if prefetch_count <= 0:
        return UNLIMITED
    waiting = waiting_for_eta(prefetch_count, slots)
    if task_seconds is None or task_seconds >= LONG:
        return slots.number + waiting
    beyond = min(slots.number * prefetch_seconds / max(task_seconds, SHORTEST), UNLIMITED)
    few = min(slots.prefetch_count, slots.number + math.floor(beyond))
    work = tasks_per_second * prefetch_seconds
    return waiting + (few if work <= few * WORTHWHILE else min(math.floor(work), UNLIMITED))


def waiting_for_eta(prefetch_count: int, slots: Slots) -> int:
    """How many tasks Celery holds in memory for their ETA: it adds each to its prefetch count."""
    return max(0, prefetch_count - slots.prefetch_count)


def enough_to_ask(held: int, slots: int, limit: int, batch: int) -> int:
    """The least free room worth a request. What is held for its ETA is not to be counted, nor its room.

    While slots may stand idle, one. Beyond that a full batch, since a request costs the same for one
    message as for ten.
    """
    extra = limit - slots
    if held < slots or extra <= 0:
        return 1
    return min(batch, extra)
