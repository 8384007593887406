"""How many messages to hold, and how many to ask for now.

On a whiteboard, the tasks that wait in memory for their ETA left out:

  limit     = slots                          of long tasks, and as long as no task has run
              what runs in PREFETCH_SECONDS  of shorter ones, see `message_limit`
  capacity  = limit - occupied - messages asked for by polls that are likely to bring them
  unclaimed = capacity - messages asked for by the other polls
  spare     = slots that are free, or soon will be, + overcommit; 0 if there is no such slot
  polls     = max(capacity, spare)

  a busy queue asks for   capacity / (busy queues that wait)  if that capacity is worth a request
  an idle queue for       unclaimed / (queues that wait)      if that is,
                          or for 1                            if it is not polled, nor `polls` idle queues are

Where tasks collect messages, as those of celery-batches do, one slot runs many of them: Celery's prefetch
count takes the place of the slots.

Where queues have an order, no queue is to wait for what others hold: one that may overtake them asks in any
case until enough of its own messages wait here (`_to_overtake`). So it takes no turns, and its polls take
none from those that it overtakes. A queue's own `max_running` bounds all that.

A poll waits for 20 seconds. Where there are more queues than `polls`, idle queues take turns of 10 seconds.

A queue is busy if its last poll brought something, and no poll of it has waited in vain since. The long
polls of idle queues bring nothing as a rule. So they take no capacity from a busy queue, and their messages
are bounded: by the capacity there was when they asked, and one message for each of `polls`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS

#: Seconds of work, at the measured pace, that a worker holds beyond the tasks that run.
PREFETCH_SECONDS: Final = 1.0

#: The measured pace wobbles: it counts only where it is clearly above Celery's own prefetch count.
WORTHWHILE: Final = 1.5

#: A task that runs this long is long: no message is held that cannot start at once.
LONG_TASK_SECONDS: Final = 1.0

#: Shorter runs are not measured.
MIN_TASK_SECONDS: Final = 0.001

#: Messages that "no limit" (Celery's prefetch count of 0) means here, well under SQS's 120,000 in flight.
UNLIMITED: Final = 10_000

#: Where there are more queues than may be polled at once, each idle queue is polled once in this time: so an
#: idle queue costs two polls in 20 seconds at the most.
IDLE_QUEUE_PERIOD_SECONDS: Final = 10

#: Messages that were held for this long, as many as there are slots, while nothing runs, are collected.
COLLECTED_AFTER_SECONDS: Final = 1.0

#: A poll of a busy queue that has brought nothing for this long is not likely to bring anything.
LIKELY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Slots:
    """The pool's slots, and what Celery's settings make of them.

    Attributes:
        prefetch_count: that of as many slots, by `worker_prefetch_multiplier`; 0 is unlimited.
        eta_task_limit: how many tasks may wait for their ETA without a slot; `None`: any.
        collecting: whether tasks collect messages that no slot runs: Celery's prefetch count counts then.
        idle: whether nothing runs.
    """

    number: int
    prefetch_count: int
    eta_task_limit: int | None = None
    collecting: bool = False
    idle: bool = False

    @property
    def fillable(self) -> int:
        """Messages that may be of use at once: as many as there are slots, or as tasks may collect."""
        return max(self.number, self.prefetch_count) if self.collecting else self.number

    @property
    def runnable(self) -> int | None:
        """Messages that Celery may have, those that wait for an ETA or a rate left out; `None`: any."""
        if self.prefetch_count <= 0:
            return None
        return self.fillable or BATCH_ENTRIES


def message_limit(
    slots: Slots, tasks_per_second: float, task_seconds: float | None, prefetch_seconds: float
) -> int:
    """How many messages the process may hold, besides those that wait for their ETA.

    Of long tasks, and before the first has run, as many as there are slots: another worker could run the
    others. Of shorter tasks up to Celery's prefetch count, of short ones more: those that run in
    `prefetch_seconds` at the measured pace. Where tasks collect messages, not less than the prefetch count.
    """
    if task_seconds is None or task_seconds >= LONG_TASK_SECONDS:
        return slots.fillable
    beyond = min(slots.number * prefetch_seconds / max(task_seconds, MIN_TASK_SECONDS), UNLIMITED)
    few = min(slots.prefetch_count, slots.fillable + math.floor(beyond))
    work = tasks_per_second * prefetch_seconds
    return few if work <= few * WORTHWHILE else min(math.floor(work), UNLIMITED)


class Snapshot(NamedTuple):
    """State of a process at one moment: messages held and asked for, and the queue that wants to be polled.

    No number includes messages that wait for their ETA.
    """

    slots: int  # of the pool
    limit: int  # messages that may be held
    prefetch_count: int  # Celery's
    occupied: int = 0  # messages that are held, and runs whose messages were settled when they began
    expected: int = 0  # messages asked for by polls that are likely to bring them
    unlikely: int = 0  # messages asked for by all other polls
    idle_polls: int = 0  # how many other polls those are, but for those of queues that may overtake this one
    queues: int = 1  # that are consumed
    overtakers: int = 0  # those of them that may overtake this one, if it may overtake none
    unpolled: int = 0  # other queues without a poll in flight
    unpolled_busy: int = 0  # the busy ones among them
    busy: bool = False  # whether this queue is
    polled: bool = False  # whether it has a poll in flight
    own_unlikely: int = 0  # messages asked for by its own polls that are not likely to come
    most: int = BATCH_ENTRIES  # messages that it may ask for in one request: 1 of a FIFO queue
    fifo_capacity: int | None = None  # messages of FIFO queues that may be asked for, if this queue is one
    room: int | None = None  # messages that this queue may still ask for by its own limit, if it has one
    ahead: int | None = None  # its messages that wait or are asked for, if they may overtake other queues'

    @property
    def spare(self) -> int:
        """Messages that idle queues may bring besides those asked for of busy ones.

        As many as can start, and as many more as Celery's prefetch count allows. More where even turns of one
        second need more polls at once for each queue to have one in `IDLE_QUEUE_PERIOD_SECONDS`.
        """
        # Short tasks within the limit keep no slot for long.
        taken = max(0, self.occupied - self.limit) if self.limit > self.slots else self.occupied
        free = self.slots - taken
        if free <= 0:
            return 0
        return free + max(1, self.prefetch_count - self.slots, self.in_turn // IDLE_QUEUE_PERIOD_SECONDS)

    @property
    def in_turn(self) -> int:
        """Queues that share the polls of idle queues."""
        return self.queues - self.overtakers


@dataclass(frozen=True, slots=True)
class Ask:
    """Size of a poll: 1 to 10 messages, and 1 to 20 seconds to wait for them."""

    messages: int
    wait: int


def ask_for(now: Snapshot) -> Ask | None:
    """The poll that this queue may make now; `None` if it has to wait."""
    capacity = now.limit - now.occupied - now.expected
    polls = max(capacity, now.spare)
    wait = WAIT_TIME_SECONDS
    if crowded := (queues := now.in_turn) > polls and now.ahead is None:
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
    """The messages of a queue that may overtake others, whatever these hold; 0 if enough of it wait here.

    Of long tasks one waits for the next slot, or of many slots one for each ten, of short ones a batch.
    """
    enough = 1 if now.most == 1 else max(1, now.slots // BATCH_ENTRIES, now.limit - now.slots)
    return min(now.most, enough - ahead) if ahead * 2 < enough else 0


def _share(now: Snapshot, capacity: int, others: int) -> int:
    """The messages of a poll that shares this capacity with other queues; 0 if it is not worth a request."""
    if now.fifo_capacity is not None:
        return max(0, min(capacity, now.fifo_capacity, now.most))
    if capacity < min_worthwhile_messages(now.limit - capacity, now.slots, now.limit):
        return 0
    return min(now.most, max(1, capacity // (1 + others)))


def min_worthwhile_messages(held: int, slots: int, limit: int) -> int:
    """The least capacity worth a request: one message while a slot may stand idle, beyond that a full batch.

    A request costs the same for one message as for ten.
    """
    beyond = limit - slots
    return 1 if held < slots or beyond <= 0 else min(BATCH_ENTRIES, beyond)
