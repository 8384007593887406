"""Capacity for messages, which all queues share: reservations, waiters, and places that deliveries take.

`policy.prefetch` decides how many messages a poll may ask for; here are the counts, and the waiters in their
order.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
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

#: Tasks that end within this time count as ended at once: they fade by half a per cent in it.
PACE_STEP_SECONDS: Final = 0.01

#: The first tasks after a rest count as done in at least this time.
MIN_PACE_SECONDS: Final = 0.25

#: The number of tasks after which the durations of earlier ones hardly count.
DURATION_MEMORY_TASKS: Final = 5

#: Messages that wait for their payload without a place cost a heartbeat each. Of more, the others keep
#: theirs, so that no more are received.
MAX_ASIDE: Final = 200


@dataclass(slots=True, eq=False)
class Reservation:
    """Capacity for the messages of one poll."""

    queue: str
    fifo: bool
    messages: int  # 1 to 10; once it is answered, those that came, until they are held
    wait: int  # seconds that the poll may wait for them
    since: float  # the monotonic instant at which the capacity was reserved


@dataclass(slots=True, eq=False)
class Waiter:
    """A queue that is to be polled, and its reservation once there is one, when `wake` is called."""

    queue: str
    fifo: bool
    wake: Callable[[], object]
    reservation: Reservation | None = None


@dataclass(slots=True)
class Taken:
    """Held messages that take a place, and runs whose messages were settled when they began.

    Attributes:
        resting: how many of the messages Celery holds until their ETA or their rate allows them to run.
    """

    messages: int = 0
    resting: int = 0
    runs: WeakSet[Delivery] = field(default_factory=WeakSet)

    def occupied(self, slots: Slots) -> int:
        """Messages and runs together, without those that rest, as many as Celery's settings allow."""
        limit = slots.eta_task_limit
        resting = self.resting if limit is None else min(self.resting, limit)
        return self.messages + len(self.runs) - resting


class AskedFor:
    """Polls in flight, and the messages that they ask for.

    Attributes:
        polls: how many are in flight, by queue.
        likely: the reservations of those that should bring all messages that they ask for.
        expected: messages that these ask for.
        fifo_expected: those of FIFO queues among them.
        unlikely: messages that the other polls ask for, by queue.
        messages: those that all polls ask for, by queue.

    Messages that have come count here until they are held: as expected ones.
    """

    def __init__(self) -> None:
        self._all: set[Reservation] = set()
        self.polls: Counter[str] = Counter()
        self.likely: set[Reservation] = set()
        self.expected = 0
        self.fifo_expected = 0
        self.unlikely: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self._came: set[Reservation] = set()  # of polls whose messages are not held yet

    def idle_polls(self, but_of: Collection[str]) -> int:
        """How many polls are not likely to bring anything, those of some queues left out."""
        idle = self.polls.total() - len(self.likely)
        if not but_of:
            return idle
        likely = sum(each.queue in but_of for each in self.likely)
        return idle + likely - sum(self.polls[queue] for queue in but_of)

    def add(self, reservation: Reservation, *, likely: bool) -> None:
        """A poll begins."""
        self._all.add(reservation)
        self.polls[reservation.queue] += 1
        if likely:
            self.likely.add(reservation)
            self._expect(reservation, reservation.messages)
        else:
            self.messages[reservation.queue] += reservation.messages
            self.unlikely[reservation.queue] += reservation.messages

    def doubt(self, reservation: Reservation) -> None:
        """Expect nothing of a poll any more. Idempotent."""
        if reservation in self.likely:
            self.likely.remove(reservation)
            self.expected -= reservation.messages
            self.fifo_expected -= reservation.messages if reservation.fifo else 0
            self.unlikely[reservation.queue] += reservation.messages

    def answered(self, reservation: Reservation, messages: int) -> None:
        """Note how many messages a poll has brought, unless it was given up before."""
        if self.remove(reservation) and messages:
            reservation.messages = messages
            self._came.add(reservation)
            self._expect(reservation, messages)

    def _expect(self, reservation: Reservation, messages: int) -> None:
        self.messages[reservation.queue] += messages
        self.expected += messages
        if reservation.fifo:
            self.fifo_expected += messages

    def remove(self, reservation: Reservation) -> bool:
        """Forget a poll, or the messages that it brought; whether it was known."""
        if reservation in self._came:
            self._came.remove(reservation)
            self._expect(reservation, -reservation.messages)
            return True
        if reservation not in self._all:
            return False
        self._all.remove(reservation)
        self.doubt(reservation)
        queue, messages = reservation.queue, reservation.messages
        self.messages[queue] -= messages
        self.polls[queue] -= 1
        if self.polls[queue]:
            self.unlikely[queue] -= messages
        else:
            del self.polls[queue], self.unlikely[queue]
        return True

    def recount(self) -> None:
        """Count all anew, by the reservations."""
        self.likely &= self._all
        self.polls = Counter(each.queue for each in self._all)
        self.messages, self.unlikely = Counter(), Counter()
        for each in (*self._all, *self._came):
            self.messages[each.queue] += each.messages
        for each in self._all - self.likely:
            self.unlikely[each.queue] += each.messages
        expected = [*self.likely, *self._came]
        self.expected = sum(each.messages for each in expected)
        self.fifo_expected = sum(each.messages for each in expected if each.fifo)

    def remove_all(self, queue: str) -> None:
        """The polls of that queue ask for nothing any more."""
        for reservation in [each for each in self._all if each.queue == queue]:
            self.remove(reservation)


class RecentRuns:
    """How many tasks ended per second lately, and how long they ran.

    Both the tasks and the time are weighted exponentially, so the pace is known soon after a rest.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # that a task runs, on average; `None` before the first
        self._tasks = 0.0
        self._observed_seconds = 0.0
        self._at: float | None = None

    def note(self, now: float, seconds: float) -> None:
        """A task ended that ran for these seconds."""
        if self._at is None or now - self._at >= PACE_STEP_SECONDS:
            self._tasks, self._observed_seconds = self._as_of(now)
            self._at = now
        self._tasks += 1
        known = seconds if self.seconds is None else self.seconds
        self.seconds = known + (seconds - known) / DURATION_MEMORY_TASKS

    def per_second(self, now: float) -> float:
        """Tasks per second, as of now."""
        tasks, seconds = self._as_of(now)
        return tasks / max(seconds, MIN_PACE_SECONDS)

    def _as_of(self, now: float) -> tuple[float, float]:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
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
        slots: see there.
        prefetch_count: Celery's; 0 is unlimited, as in kombu, until Celery sets it. It counts where there is
            no pool.
        handed: how many messages Celery was given. The main thread counts.
        loop_late: for how many seconds the loop that begins runs has not come round; the latest consumer
            sets it.
        waiters: the queues that wait for capacity, in the queues' order, and of those first come first.
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
        self._aside = 0  # held and extended, though nothing can be done with them now
        self._queues: Counter[str] = Counter()  # that poll or want to, and how many times
        self._removed: set[str] = set()  # queues that poll no more, though a last poll may be in flight
        self._busy: set[str] = set()  # queues whose last poll brought something
        self._asked = AskedFor()
        self.waiters: list[Waiter] = []
        self._idle_since: float | None = None  # the instant from which all slots are taken and nothing runs
        self._collected = False  # whether that has lasted

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
        """How many runs there are whose messages were settled when they began."""
        return len(self._places.runs)

    # Polls.

    def add_queue(self, queue: str) -> None:
        """One more queue shares the capacity."""
        self._queues[queue] += 1

    def remove_queue(self, queue: str) -> None:
        """A queue polls no more. Serves no waiter."""
        self._queues[queue] -= 1
        self._removed.add(queue)
        self._busy.discard(queue)

    def forget_polls(self, queue: str) -> None:
        """The queue's polls in flight ask for no capacity any more: the messages they bring are given back.

        If the queue is consumed again before its polls end, their messages are kept, beyond the capacity.
        """
        self._asked.remove_all(queue)

    def add_waiter(self, waiter: Waiter, now: float) -> None:
        """Add the last waiter of its queue's rank, served at once if there is capacity."""
        self._removed.discard(waiter.queue)
        insort(self.waiters, waiter, key=self._rank)
        self.serve(now, waiter.queue)

    def remove_waiter(self, waiter: Waiter, now: float) -> None:
        """Remove a waiter that gives up, and its reservation. Idempotent."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        if waiter.reservation is not None:
            self.taken(waiter.reservation, now)

    def answered(self, reservation: Reservation, messages: int, now: float) -> None:
        """The poll is over and brought this many messages, which are reserved until they are `taken`."""
        queue = reservation.queue
        self._asked.answered(reservation, messages)
        if messages and queue not in self._removed:
            self._busy.add(queue)
        elif queue not in self._asked.polls:  # else its other polls decide whether it is busy
            self._busy.discard(queue)
        self.serve(now, queue)

    def taken(self, reservation: Reservation, now: float) -> None:
        """Release a reservation: the messages of its poll are held now, or not kept. Idempotent."""
        if self._asked.remove(reservation):
            self.serve(now, reservation.queue)

    def expect(self, queue: str, now: float) -> None:
        """The queue is known to have a message: its next poll is likely to bring it."""
        if queue not in self._removed:
            self._busy.add(queue)
        self.serve(now, queue)

    def look(self, now: float, held: Iterable[Delivery]) -> None:
        """Polls that wait in vain keep their capacity no longer.

        Nor do messages that wait in Celery's memory to be collected. If a queue waits and Celery got nothing
        since the last look, all counts are made anew: one may be wrong, if memory lacked in the middle of a
        step. To be called twice a second.

        Args:
            now: the monotonic instant.
            held: what the process holds.
        """
        self._note_collected(now)
        moves, self._handed_before = self.handed != self._handed_before, self.handed
        if self.waiters and not moves:
            self._asked.recount()
            self._recount([each for each in held if each.has_place])
        for reservation in [each for each in self._asked.likely if each.since + LIKELY_SECONDS <= now]:
            self._asked.doubt(reservation)
            self._busy.discard(reservation.queue)
        if self.waiters:
            self.serve(now)

    # Places, as a delivery's state changes. Serve waiters then.

    def count(self, delivery: Delivery, messages: int) -> None:
        """Give the delivery a place (1), or take it back (-1)."""
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
        """Free the place of a delivery that has ended; if it was acknowledged early, its run keeps a slot."""
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
        """Note what a delivery waits for; others may have its place until `resume`."""
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
        """Whether it has its capacity, or may take it again: no more is held than may be."""
        if delivery.wait is not Wait.PAYLOAD:
            return True
        slots = self._pool()
        return self._places.occupied(slots) <= self._limit(slots, now)

    def _start_run(self, delivery: Delivery) -> None:
        """It has a slot until `end_run`, or until nothing refers to it any more."""
        self._places.runs.add(delivery)
        if delivery.queue.fifo:
            self._fifo.runs.add(delivery)
        if self._turns is not None:
            self._turns.start_run(delivery)

    def end_run(self, delivery: Delivery, began: float, now: float) -> None:
        """Its run has ended, which began at that monotonic instant, and whose message was settled then."""
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
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._collected = self._idle_since is not None and now - self._idle_since >= COLLECTED_AFTER_SECONDS

    def _rank(self, waiter: Waiter) -> int:
        return 0 if self._turns is None else self._turns.rank(waiter.queue)

    def serve(self, now: float, changed: str | None = None) -> None:
        """Reserve free capacity for the waiters, in their order.

        A waiter without a reservation keeps those of its kind waiting: an idle queue waits in the rotation, a
        busy one for capacity. Where there are turns, a queue may have capacity of its own, too, or lack it.
        The queue's own capacity is looked at where it has changed: of one queue, or perhaps of any.
        """
        if not self.waiters:
            return
        refused: set[tuple[bool, bool, bool]] = set()
        turns, polls = self._turns, self._asked.polls
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
            elif queue not in polls and not (turns is not None and turns.is_full(queue)):
                refused.add(kind)

    def _reserve(self, waiter: Waiter, now: float) -> Reservation | None:
        queue, fifo = waiter.queue, waiter.fifo
        if self.loop_late is not None and stands_still(self.loop_late(now)):
            return None  # nobody would begin what a poll brings
        ask = ask_for(self._snapshot(queue, now, fifo=fifo))
        if ask is None:
            return None
        reservation = Reservation(queue, fifo, ask.messages, ask.wait, now)
        self._asked.add(reservation, likely=queue in self._busy)
        return reservation

    def _snapshot(self, queue: str, now: float, *, fifo: bool) -> Snapshot:
        slots = self._pool()
        asked = self._asked
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
            unlikely=asked.unlikely.total(),
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
