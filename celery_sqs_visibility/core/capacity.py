"""Capacity for messages, shared by all queues: reservations, waiters, and the places of held messages.

`policy.prefetch` decides how many messages a poll may ask for. This module keeps the counts, and the waiters
in order.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakSet

from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.core.held import stands_still
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.policy.prefetch import (
    COLLECTED_AFTER_SECONDS,
    LIKELY_SECONDS,
    UNLIMITED,
    Slots,
    Snapshot,
    ask_for,
    message_limit,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: Seconds over which the tasks per second are averaged.
PACE_MEMORY_SECONDS: Final = 2.0

#: Tasks that end within this time count as one step: their weight fades by 0.5 % meanwhile.
PACE_STEP_SECONDS: Final = 0.01

#: The pace is averaged over at least this time, so that the first tasks after a rest don't inflate it.
MIN_PACE_SECONDS: Final = 0.25

#: The number of tasks after which the durations of earlier ones hardly count.
DURATION_MEMORY_TASKS: Final = 5

#: Messages that wait for their payload take no place, but each costs a heartbeat. Beyond this number they
#: keep their places, so that no more are received.
MAX_ASIDE: Final = 200


@dataclass(slots=True, eq=False)
class Reservation:
    """Capacity for the messages of one poll."""

    queue: str
    fifo: bool
    messages: int  # 1 to 10; after the answer, the messages that came and are not held yet
    wait: int  # seconds that the poll may wait for them
    since: float  # the monotonic instant at which the capacity was reserved
    likely: bool = False  # whether the poll is likely to bring, or has brought, all these messages
    in_flight: bool = True  # whether the poll is not answered yet


@dataclass(slots=True, eq=False)
class Waiter:
    """A queue that is to be polled. Its reservation is set before `wake` is called."""

    queue: str
    fifo: bool
    wake: Callable[[], object]
    reservation: Reservation | None = None


@dataclass(slots=True)
class Taken:
    """Held messages that take a place, and runs whose messages were settled when the run began.

    Attributes:
        resting: how many of the messages Celery holds until their ETA or their rate limit lets them run.
    """

    messages: int = 0
    resting: int = 0
    runs: WeakSet[Delivery] = field(default_factory=WeakSet)

    def occupied(self, slots: Slots) -> int:
        """Messages and runs together, less the resting ones, up to `worker_eta_task_limit`."""
        limit = slots.eta_task_limit
        resting = self.resting if limit is None else min(self.resting, limit)
        return self.messages + len(self.runs) - resting


class Asked:
    """Counts of polls in flight, and of messages that were asked for or have come and are not held yet.

    Attributes:
        polls: number of polls in flight, by queue.
        likely: the polls in flight that should bring all the messages they ask for.
        idle: number of the other polls in flight, by queue.
        unlikely: number of messages that those other polls ask for, by queue.
        expected: number of messages that likely polls ask for, or that have come.
        fifo_expected: the part of `expected` that belongs to FIFO queues.
        messages: number of messages asked for or come, by queue.
    """

    def __init__(self, reservations: Iterable[Reservation]) -> None:
        self.polls: dict[str, int] = defaultdict(int)  # in C, unlike a Counter: there may be a hundred polls
        self.idle: dict[str, int] = defaultdict(int)
        self.unlikely: dict[str, int] = defaultdict(int)
        self.messages: dict[str, int] = defaultdict(int)
        self.likely: list[Reservation] = []
        self.expected = self.fifo_expected = 0
        for each in reservations:
            queue, messages = each.queue, each.messages
            self.messages[queue] += messages
            if each.in_flight:
                self.polls[queue] += 1
                if each.likely:
                    self.likely.append(each)
            if each.likely:
                self.expected += messages
                self.fifo_expected += messages * each.fifo
            else:
                self.idle[queue] += 1
                self.unlikely[queue] += messages

    def idle_polls(self, but_of: Iterable[str]) -> int:
        """Number of polls that are not likely to bring anything, except those of the given queues."""
        return sum(self.idle.values()) - sum(self.idle[queue] for queue in but_of)


class AskedFor:
    """Reservations of polls in flight, and of answered polls whose messages are not held yet."""

    def __init__(self) -> None:
        self._reservations: set[Reservation] = set()
        self._counts: Asked | None = None

    @property
    def counts(self) -> Asked:
        """The current counts, computed once after each change."""
        counts = self._counts
        if counts is None:
            counts = self._counts = Asked(self._reservations)
        return counts

    def add(self, reservation: Reservation) -> None:
        """Add the reservation of a new poll."""
        self._reservations.add(reservation)
        self._counts = None

    def doubt(self, reservation: Reservation) -> None:
        """Stop expecting messages of a poll in flight. Idempotent."""
        reservation.likely = False
        self._counts = None

    def answered(self, reservation: Reservation, messages: int) -> None:
        """Note how many messages a poll has brought. No effect if its reservation was removed before."""
        if not messages:
            self.remove(reservation)
        elif reservation in self._reservations:
            reservation.messages, reservation.likely, reservation.in_flight = messages, True, False
            self._counts = None

    def remove(self, reservation: Reservation) -> bool:
        """Remove a reservation. Returns whether it was known."""
        if reservation not in self._reservations:
            return False
        self._reservations.remove(reservation)
        self._counts = None
        return True

    def remove_all(self, queue: str) -> None:
        """Remove the reservations of the queue's polls in flight."""
        for each in [each for each in self._reservations if each.in_flight and each.queue == queue]:
            self.remove(each)


class RecentRuns:
    """How many tasks ended per second lately, and how long they ran.

    Both the tasks and the time are weighted exponentially, so the pace is known soon after a rest.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # that a task runs, on average; `None` before the first
        self._tasks = 0.0
        self._observed_seconds = 0.0
        self._at = -math.inf

    def note(self, now: float, seconds: float) -> None:
        """Note the end of a task that ran for that many seconds."""
        if now - self._at >= PACE_STEP_SECONDS:
            self._tasks, self._observed_seconds = self._as_of(now)
            self._at = now
        self._tasks += 1
        known = seconds if self.seconds is None else self.seconds
        self.seconds = known + (seconds - known) / DURATION_MEMORY_TASKS

    def per_second(self, now: float) -> float:
        """The number of tasks that end per second, as of now."""
        tasks, seconds = self._as_of(now)
        return tasks / max(seconds, MIN_PACE_SECONDS)

    def _as_of(self, now: float) -> tuple[float, float]:
        passed = max(0.0, now - self._at)
        if passed > PACE_MEMORY_SECONDS:
            return 0.0, 0.0
        fading = math.exp(-passed / PACE_MEMORY_SECONDS)
        return self._tasks * fading, self._observed_seconds * fading + PACE_MEMORY_SECONDS * (1 - fading)


class Capacity:
    """Counts the messages held and asked for against those that may be held. Not thread-safe.

    Args:
        prefetch_seconds: seconds of work to hold beyond Celery's prefetch count.
        slots: the pool's slots; without it there are as many as Celery's prefetch count.
        turns: where queues have an order, or some have the option `max_running`.

    Attributes:
        slots: the pool's slots; `None` without a pool.
            prefetch_count: Celery's, used where there is no pool; 0 is unlimited, as in kombu, until Celery
                sets it.
            handed: number of messages passed to Celery; the main thread increments it.
            loop_late: returns for how many seconds the event loop has been blocked; set by the latest
                consumer.
            waiters: the queues that wait for capacity, in the queues' order, and first come, first served
                within it.
    """

    def __init__(
        self,
        prefetch_seconds: float,
        slots: Callable[[], Slots] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._prefetch_seconds = prefetch_seconds
        self.prefetch_count = 0
        self.slots = slots
        self._turns = turns
        self.handed = self._handed_before = 0
        self.loop_late: Callable[[float], float] | None = None
        self._recent_runs = RecentRuns()
        self._places = Taken()
        self._fifo = Taken()  # those of FIFO queues
        self._aside = 0  # held and extended without a place: their payload can't be fetched now
        self._queues: Counter[str] = Counter()  # that poll or want to, and how many times
        self._removed: set[str] = set()  # queues that poll no more, though a last poll may be in flight
        self._busy: set[str] = set()  # queues whose last poll brought messages
        self._asked = AskedFor()
        self.waiters: list[Waiter] = []
        self._idle_since: float | None = None  # when all places became taken while nothing runs
        self._collected = False  # whether it has been so for COLLECTED_AFTER_SECONDS

    @property
    def held(self) -> int:
        """How many messages take a place."""
        return self._places.messages

    @property
    def usual_run_seconds(self) -> float | None:
        """How long a run lasted lately, on average; `None` before the first has ended."""
        return self._recent_runs.seconds

    @property
    def runs(self) -> int:
        """Number of runs whose messages were settled when the run began."""
        return len(self._places.runs)

    def add_queue(self, queue: str) -> None:
        """Let another consumer of this queue share the capacity."""
        self._queues[queue] += 1

    def remove_queue(self, queue: str) -> None:
        """Note that a queue is no longer polled. The caller serves the waiters."""
        self._queues[queue] -= 1
        self._removed.add(queue)
        self._busy.discard(queue)

    def forget_polls(self, queue: str) -> None:
        """Free the capacity of the queue's polls in flight: the messages they bring are given back.

        If the queue is consumed again before these polls end, their messages are kept, beyond the capacity.
        """
        self._asked.remove_all(queue)

    def add_waiter(self, waiter: Waiter, now: float) -> None:
        """Add a waiter behind those of the same rank. It is served at once if there is capacity."""
        self._removed.discard(waiter.queue)
        insort(self.waiters, waiter, key=self._rank)
        self.serve(now, waiter.queue)

    def remove_waiter(self, waiter: Waiter, now: float) -> None:
        """Remove a waiter and release its reservation. Idempotent."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        if waiter.reservation is not None:
            self.taken(waiter.reservation, now)

    def answered(self, reservation: Reservation, messages: int, now: float) -> None:
        """Note that a poll has returned. Its messages stay reserved until `taken`."""
        queue = reservation.queue
        self._asked.answered(reservation, messages)
        if messages and queue not in self._removed:
            self._busy.add(queue)
        elif queue not in self._asked.counts.polls:  # else its other polls decide whether it is busy
            self._busy.discard(queue)
        self.serve(now, queue)

    def taken(self, reservation: Reservation, now: float) -> None:
        """Release a reservation, once the poll's messages are held or discarded. Idempotent."""
        if self._asked.remove(reservation):
            self.serve(now, reservation.queue)

    def expect(self, queue: str, now: float) -> None:
        """Note that the queue is known to have a message, so its next poll is likely to bring it."""
        if queue not in self._removed:
            self._busy.add(queue)
        self.serve(now, queue)

    def look(self, now: float, held: Iterable[Delivery]) -> None:
        """Check the counts, twice a second.

        Polls that have waited in vain no longer keep their capacity, nor do messages that Celery collects in
        memory. If a queue waits for capacity and Celery got no message since the last check, all counts are
        made anew: one may be wrong after memory ran out in the middle of a step.


        Args:
            now: the monotonic instant.
            held: all deliveries that the process holds.
        """
        self._note_collected(now)
        if self.waiters and self.handed == self._handed_before:
            self._recount([each for each in held if each.has_place])
        self._handed_before = self.handed
        for reservation in [each for each in self._asked.counts.likely if each.since + LIKELY_SECONDS <= now]:
            self._asked.doubt(reservation)
            self._busy.discard(reservation.queue)
        if self.waiters:
            self.serve(now)

    # Places, as a delivery's state changes. The caller serves the waiters afterwards.

    def count(self, delivery: Delivery, messages: int) -> None:
        """Change the number of places that deliveries of this queue take; -1 frees one."""
        self._places.messages += messages
        if delivery.queue.fifo:
            self._fifo.messages += messages
        if self._turns is not None:
            self._turns.hold(delivery.queue.name, messages)

    def _recount(self, held: Collection[Delivery]) -> None:
        """Count the places of what is held, as `count`, `rest` and `resume` do."""
        held = [each for each in held if each.consumer is not None and each.consumer.capacity is self]
        placed = [each for each in held if each.wait is not Wait.PAYLOAD]
        self._aside = len(held) - len(placed)
        for places, counted in (
            (self._places, placed),
            (self._fifo, [each for each in placed if each.queue.fifo]),
        ):
            places.messages = len(counted)
            places.resting = sum(each.wait is Wait.START for each in counted)
        if self._turns is not None:
            self._turns.recount(each.queue.name for each in placed)

    def free(self, delivery: Delivery, now: float) -> None:
        """Free the place of a delivery that has ended. If acknowledged early, its run keeps the slot."""
        if delivery.wait is not None:
            self._end_wait(delivery)
        self.count(delivery, -1)
        if (began := delivery.began) is not None:
            if delivery.acknowledged_early:
                self._start_run(delivery)
                return
            self._recent_runs.note(now, now - began)
        if self._turns is not None:
            self._turns.end(delivery)

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        """Note what a delivery waits for. Others may have its place until `resume`."""
        if delivery.wait is not None or not delivery.has_place:
            return
        if wait is Wait.PAYLOAD:
            if self._aside >= MAX_ASIDE:
                return
            self._aside += 1
            self.count(delivery, -1)
        elif wait is Wait.START:
            self._count_resting(delivery, 1)
        delivery.wait = wait
        if self._turns is not None:
            self._turns.rest(delivery)

    def resume(self, delivery: Delivery) -> None:
        """End the wait of a delivery, which takes its place again, even beyond the capacity. Idempotent."""
        if delivery.wait is not None:
            self._end_wait(delivery)

    def _end_wait(self, delivery: Delivery) -> None:
        if self._turns is not None:
            self._turns.resume(delivery)
        if delivery.wait is Wait.PAYLOAD:
            self._aside -= 1
            self.count(delivery, 1)
        elif delivery.wait is Wait.START:
            self._count_resting(delivery, -1)
        delivery.wait = None

    def _count_resting(self, delivery: Delivery, number: int) -> None:
        self._places.resting += number
        if delivery.queue.fifo:
            self._fifo.resting += number

    def has_place(self, delivery: Delivery, now: float) -> bool:
        """Whether a delivery has a place, or there is room for it to take one again."""
        if delivery.wait is not Wait.PAYLOAD:
            return True
        slots = self._pool()
        return self._places.occupied(slots) <= self._limit(slots, now)

    def _start_run(self, delivery: Delivery) -> None:
        """Count the run until `end_run`, or until nothing refers to the delivery any more."""
        self._places.runs.add(delivery)
        if delivery.queue.fifo:
            self._fifo.runs.add(delivery)
        if self._turns is not None:
            self._turns.start_run(delivery)

    def end_run(self, delivery: Delivery, began: float, now: float) -> None:
        """Note the end of a run that began at that monotonic instant, and whose message was settled then."""
        self._places.runs.discard(delivery)
        self._fifo.runs.discard(delivery)
        if self._turns is not None:
            self._turns.end_run(delivery)
            self._turns.end(delivery)
        self._recent_runs.note(now, now - began)

    def _note_collected(self, now: float) -> None:
        held = self._places
        slots = self.slots() if self.slots and (held.messages or held.runs) else None
        if slots is None or not slots.idle or held.occupied(slots) < slots.number:
            self._idle_since, self._collected = None, False
            return
        if self._idle_since is None:
            self._idle_since = now
        self._collected = now - self._idle_since >= COLLECTED_AFTER_SECONDS

    def _rank(self, waiter: Waiter) -> int:
        return 0 if self._turns is None else self._turns.rank(waiter.queue)

    def serve(self, now: float, changed: str | None = None) -> None:
        """Reserve free capacity for the waiters, in their order.

        A waiter that gets none keeps those of its kind waiting: an idle queue waits in the rotation, a busy
        one for capacity. With turns, a queue may also have a limit or a share of its own, which is checked
        for the `changed` queue only, or for all if it is `None`.
        """
        if not self.waiters:
            return
        refused: set[tuple[bool, bool, bool]] = set()
        turns, polls = self._turns, self._asked.counts.polls
        for waiter in tuple(self.waiters):
            queue = waiter.queue
            kind = queue in self._busy, waiter.fifo, turns is not None and bool(turns.overtakers(queue))
            has_own = turns is not None and changed in (None, queue)
            if kind in refused and not has_own and queue not in polls:
                continue
            if (reservation := self._reserve(waiter, now)) is not None:
                waiter.reservation = reservation
                self.waiters.remove(waiter)
                waiter.wake()
                polls = self._asked.counts.polls
            elif queue not in polls and not (turns is not None and turns.is_full(queue)):
                refused.add(kind)

    def _reserve(self, waiter: Waiter, now: float) -> Reservation | None:
        queue, fifo = waiter.queue, waiter.fifo
        if self.loop_late is not None and stands_still(self.loop_late(now)):
            return None  # Celery would not start what a poll brings
        ask = ask_for(self._snapshot(queue, now, fifo=fifo))
        if ask is None:
            return None
        reservation = Reservation(queue, fifo, ask.messages, ask.wait, now, queue in self._busy)
        self._asked.add(reservation)
        return reservation

    def _snapshot(self, queue: str, now: float, *, fifo: bool) -> Snapshot:
        slots = self._pool()
        asked = self._asked.counts
        own_unlikely = asked.unlikely[queue]
        fillable = slots.fillable
        fifo_held = self._fifo.occupied(slots)
        fifo_capacity = max(0, (fillable or BATCH_ENTRIES) - fifo_held - asked.fifo_expected - own_unlikely)
        polled = queue in asked.polls
        queues = self._queues.total()
        overtakers = self._turns.overtakers(queue) if self._turns else ()
        return Snapshot(
            slots=fillable,
            limit=self._limit(slots, now),
            prefetch_count=slots.prefetch_count,
            occupied=self._places.occupied(slots),
            expected=asked.expected,
            unlikely=sum(asked.unlikely.values()),
            idle_polls=asked.idle_polls(but_of=overtakers),
            queues=queues,
            overtakers=sum(self._queues[each] for each in overtakers),
            unpolled=max(0, queues - len(asked.polls) - (not polled)),
            unpolled_busy=len(self._busy - asked.polls.keys() - {queue}),
            busy=queue in self._busy,
            polled=polled,
            own_unlikely=own_unlikely,
            most=1 if fifo else BATCH_ENTRIES,
            fifo_capacity=fifo_capacity if fifo else None,
            **(self._turns.own_share(queue, asked.messages[queue]) if self._turns else {}),
        )

    def _pool(self) -> Slots:
        slots = self.slots() if self.slots else Slots(self.prefetch_count, self.prefetch_count)
        return replace(slots, collecting=True) if self._collected else slots

    def _limit(self, slots: Slots, now: float) -> int:
        if slots.prefetch_count <= 0:
            return UNLIMITED
        runs = self._recent_runs
        pace = runs.per_second(now)
        return message_limit(slots, pace, runs.seconds, self._prefetch_seconds)
