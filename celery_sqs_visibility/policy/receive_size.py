"""How many messages a poll may ask for, and how long it may wait: one decision about one snapshot.

On a whiteboard, the tasks that wait for their ETA left out:

    room  = limit - occupied - messages asked for by polls that are likely to bring them
    free  = room - messages asked for by the other polls
    spare = slots that are free, or soon will be, + overcommit; 0 if there is no such slot
    polls = max(room, spare)

    a busy queue asks for   room / (busy queues that wait)    if that room is worth a request
    an idle queue for       free / (queues that wait)         if that is,
                            or for 1                          if it is not polled, nor `polls` idle queues are

A poll waits for 20 seconds. Where there are more queues than `polls`, idle queues take turns of 10 seconds.

A queue is busy if its last poll brought something, and no poll of it has waited in vain since. The long
polls of idle queues bring nothing as a rule. So they take no room from a busy queue, and what they bring
nevertheless is bounded: by what there was room for when they asked, and one message for each of `polls`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.policy.prefetch import enough_to_ask
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS

#: Seconds in which each idle queue is polled once, where there are more queues than may be polled at once: so
#: an idle queue costs two polls in 20 seconds at the most.
TURN_SECONDS: Final = 10

#: A poll of a busy queue that has brought nothing for so many seconds is not likely to bring anything.
LIKELY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a process holds and has asked for, and the queue that wants to be polled, at one moment.

    No number includes messages that are held for their ETA.

    Attributes:
        slots: of the pool.
        limit: messages that may be held.
        prefetch_count: Celery's.
        occupied: messages that are held, and runs whose messages were settled when they began.
        expected: messages that were asked for by polls likely to bring them.
        unlikely: messages that were asked for by all other polls, which are
        idle_polls: so many.
        queues: how many are consumed.
        unpolled: the other queues without a poll in flight, and
        unpolled_busy: how many of them are busy.
        busy: whether this queue is.
        polled: whether it has a poll in flight.
        own_unlikely: messages that were asked for by its own polls and are not likely to come.
        most: messages that it may ask for in one request: 1 of a FIFO queue.
        fifo_room: how many messages of FIFO queues may be asked for, if this queue is one.
    """

    slots: int
    limit: int
    prefetch_count: int
    occupied: int = 0
    expected: int = 0
    unlikely: int = 0
    idle_polls: int = 0
    queues: int = 1
    unpolled: int = 0
    unpolled_busy: int = 0
    busy: bool = False
    polled: bool = False
    own_unlikely: int = 0
    most: int = BATCH_ENTRIES
    fifo_room: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What a poll may ask for.

    Attributes:
        messages: 1 to 10.
        wait: seconds that it may wait for them, 1 to 20.
    """

    messages: int
    wait: int


def ask_for(now: Snapshot) -> Ask | None:
    """What this queue may be asked for now; `None` if it has to wait."""
    capacity = now.limit - now.occupied - now.expected
    polls = max(capacity, spare(now))
    wait = WAIT_TIME_SECONDS
    if crowded := now.queues > polls:
        wait = min(max(1, TURN_SECONDS * polls // now.queues), WAIT_TIME_SECONDS)
        polls = min(polls, max(1, wait * now.queues // TURN_SECONDS))
    if now.busy:
        messages = _share(now, capacity - now.own_unlikely, now.unpolled_busy)
    elif crowded and now.idle_polls >= polls:
        messages = 0
    else:
        messages = _share(now, capacity - now.unlikely, now.unpolled) or _first_message(now, polls)
    return Ask(messages, wait) if messages else None


def spare(now: Snapshot) -> int:
    """Messages that idle queues may bring beside whatever was asked for.

    As many as can start, and as many more as Celery's prefetch count allows. Where queues take turns of a
    second and it takes more polls at once than that for each to have one in `TURN_SECONDS`, there are more.
    """
    # Of short tasks what is held within the limit keeps no slot for long.
    taken = max(0, now.occupied - now.limit) if now.limit > now.slots else now.occupied
    free = now.slots - taken
    if free <= 0:
        return 0
    return free + max(1, now.prefetch_count - now.slots, now.queues // TURN_SECONDS)


def _share(now: Snapshot, capacity: int, others: int) -> int:
    """The messages of a poll that shares this room with others that wait; 0 if it is not worth a request."""
    if now.fifo_room is not None:
        return max(0, min(capacity, now.fifo_room, now.most))
    held = now.limit - capacity
    if capacity < enough_to_ask(held, now.slots, now.limit, BATCH_ENTRIES):
        return 0
    return min(now.most, max(1, capacity // (1 + others)))


def _first_message(now: Snapshot, polls: int) -> int:
    """1 if an idle queue is to be asked for its first message, whatever was asked of others."""
    blocked = now.polled or now.queues == 1 or now.idle_polls >= polls or now.fifo_room == 0
    return 0 if blocked else 1
