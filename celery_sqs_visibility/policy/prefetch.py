"""How many messages to hold, and how many to ask for now.

Without the tasks that wait in memory for their ETA:

  limit     = slots                          of long tasks, and as long as no task has run
              what runs in PREFETCH_SECONDS  of shorter ones, see `message_limit`
  capacity  = limit - occupied - messages asked for by polls that are likely to bring them
  unclaimed = capacity - messages asked for by the other polls
  spare     = slots that are free, or soon will be, + overcommit; 0 if there is no such slot
  polls     = max(capacity, spare)

  a busy queue asks for   capacity / (busy queues that wait)  if that capacity is worth a request
  an idle queue for       unclaimed / (queues that wait)      if that is,
                          or for 1                            if it is not polled, nor `polls` idle queues are

Tasks that collect messages, as those of celery-batches, run many in one slot: then Celery's prefetch count
takes the place of the slots.

If queues have an order, a queue that may overtake others asks until enough of its own messages wait here
(`_to_overtake`), whatever the others hold. It is not in the rotation of idle queues. A queue's own
`max_running` bounds all that.

A poll waits for 20 seconds. With more queues than `polls`, idle ones are polled in rotation, for 10 seconds.

A queue is busy if its last poll brought something and no poll has waited in vain since. The long polls of
idle queues seldom bring anything, so they take no capacity from busy queues. Their messages are bounded by
the capacity at the time of the request, and one message for each of `polls`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS

#: Seconds of work, at the measured pace, that a worker holds beyond the tasks that run.
PREFETCH_SECONDS: Final = 1.0

#: The measured pace counts only if it exceeds Celery's prefetch count by this factor.
WORTHWHILE: Final = 1.5

#: If tasks run this long, no message is held that can't start at once.
LONG_TASK_SECONDS: Final = 1.0

#: Shorter runs are not measured.
MIN_TASK_SECONDS: Final = 0.001

#: The limit for Celery's prefetch count of 0 ("no limit"), well below SQS's 120,000 in flight.
UNLIMITED: Final = 10_000

#: If there are more queues than polls, each idle queue is polled once in this time.
IDLE_QUEUE_PERIOD_SECONDS: Final = 10

#: If nothing runs, and as many messages as there are slots are held for this long, they are being collected.
COLLECTED_AFTER_SECONDS: Final = 1.0

#: A poll of a busy queue that has waited this long is not likely to bring anything.
LIKELY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Slots:
    """The pool's slots, and what Celery's settings make of them.

    Attributes:
        number: of slots.
        prefetch_count: Celery's, by `worker_prefetch_multiplier`; 0 is unlimited.
        eta_task_limit: how many tasks may wait for their ETA without a slot; `None`: any number.
        collecting: whether tasks collect messages that no slot runs.
        idle: whether nothing runs.
    """

    number: int
    prefetch_count: int
    eta_task_limit: int | None = None
    collecting: bool = False
    idle: bool = False

    @property
    def fillable(self) -> int:
        """The most messages that can be used at once: for slots, or for tasks that collect them."""
        return max(self.number, self.prefetch_count) if self.collecting else self.number

    @property
    def runnable(self) -> int | None:
        """The most messages for Celery, besides those that wait for an ETA or a rate; `None` if unlimited."""
        if self.prefetch_count <= 0:
            return None
        return self.fillable or BATCH_ENTRIES


def message_limit(
    slots: Slots, tasks_per_second: float, task_seconds: float | None, prefetch_seconds: float
) -> int:
    """The most messages that the process may hold, besides those that wait for their ETA.

    For long tasks, and before any has run, one for each slot, because other workers could run more. For
    shorter tasks up to Celery's prefetch count; for short ones as many as run in `prefetch_seconds` at the
    measured pace. If tasks collect messages, at least the prefetch count.
    """
    if task_seconds is None or task_seconds >= LONG_TASK_SECONDS:
        return slots.fillable
    beyond = min(slots.number * prefetch_seconds / max(task_seconds, MIN_TASK_SECONDS), UNLIMITED)
    few = min(slots.prefetch_count, slots.fillable + math.floor(beyond))
    work = tasks_per_second * prefetch_seconds
    return few if work <= few * WORTHWHILE else min(math.floor(work), UNLIMITED)


class Snapshot(NamedTuple):
    """What a process holds and asks for now, and the queue to poll.

    No number includes messages that wait for their ETA.
    """

    slots: int  # of the pool
    limit: int  # messages that may be held
    prefetch_count: int  # Celery's
    occupied: int = 0  # messages that are held, and runs whose messages were settled when they began
    expected: int = 0  # messages asked for by polls that are likely to bring them
    unlikely: int = 0  # messages asked for by all other polls
    idle_polls: int = 0  # number of those other polls, except of queues that may overtake this one
    queues: int = 1  # number of consumed queues
    overtakers: int = 0  # number of queues that may overtake this one, if it may overtake none
    unpolled: int = 0  # number of other queues without a poll in flight
    unpolled_busy: int = 0  # number of busy ones among them
    busy: bool = False  # whether this queue is busy
    polled: bool = False  # whether it has a poll in flight
    own_unlikely: int = 0  # messages asked for by its polls that are not likely to bring them
    most: int = BATCH_ENTRIES  # messages that it may ask for in one request: 1 in a FIFO queue
    fifo_capacity: int | None = None  # messages of FIFO queues that may be asked for, if this queue is one
    room: int | None = None  # messages that this queue may still ask for by its own limit, if it has one
    ahead: int | None = None  # its messages that wait or are asked for, if they may overtake other queues'

    @property
    def spare(self) -> int:
        """The messages that idle queues may bring beside those of busy ones.

        As many as can start, plus what Celery's prefetch count allows; more if otherwise not every queue
        could be polled once in `IDLE_QUEUE_PERIOD_SECONDS`.
        """
        # Short tasks within the limit do not occupy a slot for long.
        taken = max(0, self.occupied - self.limit) if self.limit > self.slots else self.occupied
        free = self.slots - taken
        if free <= 0:
            return 0
        return free + max(1, self.prefetch_count - self.slots, self.in_rotation // IDLE_QUEUE_PERIOD_SECONDS)

    @property
    def in_rotation(self) -> int:
        """The number of queues that share the polls of idle queues."""
        return self.queues - self.overtakers


@dataclass(frozen=True, slots=True)
class Ask:
    """Size of a poll: 1 to 10 messages, and 1 to 20 seconds to wait for them."""

    messages: int
    wait: int


def ask_for(now: Snapshot) -> Ask | None:
    """Choose the poll that this queue may make now; `None` if it must wait."""
    capacity = now.limit - now.occupied - now.expected
    polls = max(capacity, now.spare)
    wait = WAIT_TIME_SECONDS
    if crowded := (queues := now.in_rotation) > polls and now.ahead is None:
        wait = min(max(1, IDLE_QUEUE_PERIOD_SECONDS * polls // queues), WAIT_TIME_SECONDS)
        polls = min(polls, max(1, wait * queues // IDLE_QUEUE_PERIOD_SECONDS))
    if now.busy:
        messages = _share(now, capacity - now.own_unlikely, now.unpolled_busy)
    elif crowded and now.idle_polls >= polls:
        messages = 0
    else:
        messages = _share(now, capacity - now.unlikely, now.unpolled)
        if not messages and not now.polled and now.queues > 1 and now.idle_polls < polls:
            messages = 0 if now.fifo_capacity == 0 else 1  # an idle queue's first message
    if not messages and now.ahead is not None:
        messages = _to_overtake(now, now.ahead)
    if now.room is not None:
        messages = min(messages, now.room)
    return Ask(messages, wait) if messages else None


def _to_overtake(now: Snapshot, ahead: int) -> int:
    """The messages to ask for in a queue that may overtake others; 0 if enough of its messages wait here.

    Enough is one message of long tasks, or one for ten slots, and a batch of short tasks.
    """
    enough = 1 if now.most == 1 else max(1, now.slots // BATCH_ENTRIES, now.limit - now.slots)
    return min(now.most, enough - ahead) if ahead * 2 < enough else 0


def _share(now: Snapshot, capacity: int, others: int) -> int:
    """The messages of a poll that shares the capacity with other queues; 0 if not worth a request."""
    if now.fifo_capacity is not None:
        return max(0, min(capacity, now.fifo_capacity, now.most))
    if capacity < min_worthwhile_messages(now.limit - capacity, now.slots, now.limit):
        return 0
    return min(now.most, max(1, capacity // (1 + others)))


def min_worthwhile_messages(held: int, slots: int, limit: int) -> int:
    """The least capacity worth a request: one message while a slot may be idle, otherwise a full batch.

    A request costs the same for one message as for ten.
    """
    beyond = limit - slots
    return 1 if held < slots or beyond <= 0 else min(BATCH_ENTRIES, beyond)
