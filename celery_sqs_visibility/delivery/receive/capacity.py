"""Capacity for messages, which all queues share: reservations, waiters and held counts.

`policy.prefetch` decides how many messages a poll may ask for; here are the lock, the counters, and the
waiters in their order.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakSet

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.held import stands_still
from celery_sqs_visibility.delivery.receive.turns import Turns
from celery_sqs_visibility.policy.clock import Clock
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
SHORTEST_PACE_SECONDS: Final = 0.25

#: The number of tasks after which the durations of earlier ones hardly count.
DURATION_MEMORY_TASKS: Final = 5

#: Messages that are set aside cost a heartbeat each. Of more, the others keep their capacity, so that no more
#: are received.
MOST_SET_ASIDE: Final = 200


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Capacity for the messages of one poll."""

    queue: str
    fifo: bool
    messages: int  # 1 to 10
    wait: int  # seconds that the poll may wait for them
    since: float  # the monotonic instant at which the capacity was reserved


@dataclass(slots=True, eq=False)
class Waiter:
    """A queue that is to be polled, and its reservation once there is one."""

    queue: str
    fifo: bool
    changed: threading.Condition  # of the capacity's lock: there is a reservation, or a reason to give up
    reservation: Reservation | None = None


@dataclass(slots=True)
class Held:
    """Messages that are held, and runs whose messages were settled when they began."""

    messages: int = 0
    runs: WeakSet[object] = field(default_factory=WeakSet)
    #: Keys of those of the messages that Celery holds until their ETA or their rate allows them to run.
    resting: set[tuple[str, str]] = field(default_factory=set)

    def occupied(self, slots: Slots) -> int:
        """Messages and runs together, without those that rest, as many as Celery's settings allow."""
        resting, limit = len(self.resting), slots.eta_task_limit
        return self.messages + len(self.runs) - (resting if limit is None else min(resting, limit))


class AskedFor:
    """Polls in flight, and the messages that they ask for. Not thread-safe: the capacity locks.

    Attributes:
        polls: how many are in flight, by queue.
        likely: the reservations of those that should bring all messages that they ask for.
        expected: messages that these ask for.
        fifo_expected: those of FIFO queues among them.
        unlikely: messages that the other polls ask for, by queue.
        messages: those that all polls ask for, by queue.
    """

    def __init__(self) -> None:
        self._all: set[Reservation] = set()
        self.polls: Counter[str] = Counter()
        self.likely: set[Reservation] = set()
        self.expected = 0
        self.fifo_expected = 0
        self.unlikely: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

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
        self.messages[reservation.queue] += reservation.messages
        if likely:
            self.likely.add(reservation)
            self.expected += reservation.messages
            self.fifo_expected += reservation.messages if reservation.fifo else 0
        else:
            self.unlikely[reservation.queue] += reservation.messages

    def doubt(self, reservation: Reservation) -> None:
        """The poll is not likely to bring anything; harmless if that is known."""
        if reservation in self.likely:
            self.likely.remove(reservation)
            self.expected -= reservation.messages
            self.fifo_expected -= reservation.messages if reservation.fifo else 0
            self.unlikely[reservation.queue] += reservation.messages

    def remove(self, reservation: Reservation) -> None:
        """The poll is over; harmless if it asks for nothing any more."""
        if reservation not in self._all:
            return
        self._all.remove(reservation)
        self.doubt(reservation)
        queue = reservation.queue
        self.unlikely[queue] -= reservation.messages
        self.messages[queue] -= reservation.messages
        self.polls[queue] -= 1
        if not self.polls[queue]:
            del self.polls[queue], self.unlikely[queue], self.messages[queue]

    def remove_all(self, queue: str) -> None:
        """The polls of that queue ask for nothing any more."""
        for reservation in [each for each in self._all if each.queue == queue]:
            self.remove(reservation)


class RecentRuns:
    """How many tasks ended per second lately, and how long they ran. Not thread-safe: its owner locks.

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
        return tasks / max(seconds, SHORTEST_PACE_SECONDS)

    def _as_of(self, now: float) -> tuple[float, float]:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        if passed > PACE_MEMORY_SECONDS:
            return 0.0, 0.0
        fading = math.exp(-passed / PACE_MEMORY_SECONDS)
        return self._tasks * fading, self._observed_seconds * fading + PACE_MEMORY_SECONDS * (1 - fading)


class ReceiveCapacity:
    """Counts the messages held and asked for against those that may be held. Safe to use from any thread.

    Args:
        prefetch_seconds: seconds of work to hold beyond Celery's prefetch count.
        clock: the monotonic clock.
        slots: the pool's slots; without it there are as many as Celery's prefetch count.
        turns: where queues have an order, or some have the option `max_running`.

    Attributes:
        slots: see there.
        handed: how many messages Celery was given.
        gives_turns: whether Celery is given a message only when it is its queue's turn: see `turn_given`.
        loop_late: for how many seconds the loop that begins runs has not come round; the latest consumer
            sets it.
    """

    def __init__(
        self,
        prefetch_seconds: float,
        clock: Clock,
        slots: Callable[[], Slots] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._prefetch_seconds = prefetch_seconds
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._prefetch_count = 0  # unlimited, as in kombu, until Celery sets it
        self.slots = slots
        self._turns = turns
        self.gives_turns = turns is not None
        self.handed = 0
        self.loop_late: Callable[[float], float] | None = None
        self._recent_runs = RecentRuns()
        self._held = Held()
        self._fifo = Held()  # those of FIFO queues
        # Held and extended, though nothing can be done with them now: their capacity is others'.
        self._aside: set[Delivery] = set()
        self._queues: Counter[str] = Counter()  # that poll or want to, and how many times
        self._removed: set[str] = set()  # queues that poll no more, though a last poll may be in flight
        self._busy: set[str] = set()  # queues whose last poll brought something
        self._asked = AskedFor()
        self._waiters: list[Waiter] = []  # in the queues' order, and of those first come first
        self._idle_since: float | None = None  # the instant from which all slots are taken and nothing runs
        self._collected = False  # whether that has lasted

    @property
    def prefetch_count(self) -> int:
        """Celery's, as last set; 0 is unlimited. It counts where there is no pool."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        with self._lock:
            self._prefetch_count = count
            self._serve()
        if self._turns is not None:
            self._turns.wake()

    @property
    def held(self) -> int:
        """How many messages are held."""
        return self._held.messages

    @property
    def runs(self) -> int:
        """How many runs there are whose messages were settled when they began."""
        return len(self._held.runs)

    def _is_overdrawn(self) -> bool:
        """Whether more messages are held than may be, those that rest left out. Under the lock."""
        slots = self._pool()
        return self._held.occupied(slots) > self._limit(slots)

    def add_queue(self, queue: str) -> None:
        """One more queue shares the capacity."""
        with self._lock:
            self._queues[queue] += 1

    def remove_queue(self, queue: str) -> None:
        """A queue polls no more. Serves no waiter."""
        with self._lock:
            self._queues[queue] -= 1
            self._removed.add(queue)
            self._busy.discard(queue)

    def forget_polls(self, queue: str) -> None:
        """The queue's polls in flight ask for no capacity any more: the messages they bring are given back.

        If the queue is consumed again before its polls end, their messages are kept, beyond the capacity.
        """
        with self._lock:
            self._asked.remove_all(queue)

    def reserve(
        self,
        queue: str,
        timeout: float | None,
        given_up: Callable[[], bool] = lambda: False,
        *,
        fifo: bool = False,
    ) -> Reservation | None:
        """Wait up to `timeout` seconds (`None`: without end) for capacity; `None` if none came.

        First come, first served. A waiter that has `given_up` meanwhile leaves at the next `wake`.
        """
        with self._lock:
            waiter = self._add_waiter(queue, fifo)
            try:
                waiter.changed.wait_for(lambda: waiter.reservation is not None or given_up(), timeout)
            finally:
                if waiter.reservation is None:
                    self._waiters.remove(waiter)
            return waiter.reservation

    def add_waiter(self, queue: str, *, fifo: bool = False) -> Waiter:
        """Add the queue as the last waiter of its rank, served at once if there is capacity."""
        with self._lock:
            return self._add_waiter(queue, fifo)

    def _add_waiter(self, queue: str, fifo: bool) -> Waiter:  # noqa: FBT001 - positional
        self._removed.discard(queue)
        waiter = Waiter(queue, fifo, threading.Condition(self._lock))
        insort(self._waiters, waiter, key=self._rank)
        self._serve(queue)
        return waiter

    def received(self, reservation: Reservation, messages: int) -> None:
        """The poll is over and brought this many messages."""
        queue = reservation.queue
        with self._lock:
            self._asked.remove(reservation)
            if messages and queue not in self._removed:
                self._busy.add(queue)
            elif queue not in self._asked.polls:  # else its other polls decide whether it is busy
                self._busy.discard(queue)
            self._hold(messages, queue, reservation.fifo)
            self._serve(queue)

    def hold(self, messages: int, *, queue: str = "", fifo: bool = False) -> None:
        """Hold this many more messages, without a reservation: those of a late answer, for example."""
        with self._lock:
            self._hold(messages, queue, fifo)

    def _hold(self, messages: int, queue: str, fifo: bool) -> None:  # noqa: FBT001 - positional
        self._held.messages += messages
        if fifo:
            self._fifo.messages += messages
        if self._turns is not None:
            self._turns.hold(queue, messages)

    def release(self, *, queue: str = "", began: float | None = None, fifo: bool = False) -> None:
        """A held message was settled; `began` is the monotonic instant at which its run did, if it ran."""
        with self._lock:
            self._hold(-1, queue, fifo)
            if began is not None:
                self._recent_runs.note(now := self._clock.monotonic(), now - began)
            if self._waiters:
                self._serve(queue)

    def set_aside(self, delivery: Delivery) -> None:
        """Give its capacity to others, as long as it is held; harmless if they have it."""
        with self._lock:
            if delivery in self._aside or len(self._aside) >= MOST_SET_ASIDE:
                return
            # First: it is settled, and then looked for here.
            self._aside.add(delivery)
            if delivery.held:
                self._hold(-1, delivery.queue.name, delivery.queue.fifo)
                self._serve(delivery.queue.name)
            else:
                self._aside.discard(delivery)

    def has_place(self, delivery: Delivery) -> bool:
        """Whether it has its capacity, or may take it again: no more is held than may be."""
        with self._lock:
            return delivery not in self._aside or not self._is_overdrawn()

    def take_again(self, delivery: Delivery) -> None:
        """It takes capacity again, though there may be none left; harmless if it does already."""
        with self._lock:
            if delivery in self._aside:
                self._aside.remove(delivery)
                self._hold(1, delivery.queue.name, delivery.queue.fifo)

    def rest(self, delivery: Delivery) -> None:
        """Celery, which has it, holds it for its ETA or its rate: others have its capacity meanwhile.

        Until `resume`, or until its message is settled, however that comes.
        """
        with self._lock:
            for held in (self._held, self._fifo) if delivery.queue.fifo else (self._held,):
                held.resting.add(delivery.message_key)
            if not delivery.held:  # it is settled, and then looked for here
                self._resume(delivery)
            elif self._waiters:
                self._serve(delivery.queue.name)

    def resume(self, delivery: Delivery) -> None:
        """Its time has come; harmless if it does not rest."""
        with self._lock:
            self._resume(delivery)

    def _resume(self, delivery: Delivery) -> None:
        for held in (self._held, self._fifo):
            held.resting.discard(delivery.message_key)

    def free(self, delivery: Delivery) -> None:
        """Its message was settled; one that is acknowledged early is held no more, but its run goes on."""
        queue, began = delivery.queue, delivery.began
        if delivery in self._aside:
            self.take_again(delivery)
        if self._held.resting:
            self.resume(delivery)
        if began is not None and delivery.acknowledged_early:
            self.start_run(delivery, queue=queue.name, fifo=queue.fifo)
        else:
            self.release(queue=queue.name, began=began, fifo=queue.fifo)
            if self._turns is not None:
                self._turns.end(delivery)

    def start_run(self, run: object, *, queue: str = "", fifo: bool = False) -> None:
        """A held message was settled, and its run begins.

        The run has a slot until `end_run`, or until nothing refers to it any more.
        """
        with self._lock:
            self._hold(-1, queue, fifo)
            self._held.runs.add(run)
            if fifo:
                self._fifo.runs.add(run)
            if self._turns is not None:
                self._turns.start_run(queue, run)
            self._serve(queue)

    def end_run(self, run: object, began: float, *, queue: str = "") -> None:
        """A run of `start_run` has ended that began at this monotonic instant."""
        with self._lock:
            self._held.runs.discard(run)
            self._fifo.runs.discard(run)
            if self._turns is not None:
                self._turns.end_run(queue, run)
            self._recent_runs.note(now := self._clock.monotonic(), now - began)
            self._serve(queue)

    def expect(self, queue: str) -> None:
        """The queue is known to have a message: its next poll is likely to bring it."""
        with self._lock:
            if queue not in self._removed:
                self._busy.add(queue)
            self._serve(queue)

    def count_nothing(self) -> None:
        """No message is held, asked for or run, though some are counted: memory lacked between two lines.

        Where there are turns, these count the messages of all the process's consumers, and are believed.
        """
        with self._lock:
            self._asked = AskedFor()
            if self._turns is None:
                self._held, self._fifo = Held(), Held()
            self._serve()

    def turn_given(self, queue: str) -> None:
        """A message of the queue goes to Celery: it may ask for the next one that is to wait here."""
        with self._lock:
            self._serve(queue)

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`: polls that wait in vain keep their capacity no longer.

        Nor do messages that wait in Celery's memory to be collected.
        """
        with self._lock:
            self._note_collected(now)
            for reservation in [each for each in self._asked.likely if each.since + LIKELY_SECONDS <= now]:
                self._asked.doubt(reservation)
                self._busy.discard(reservation.queue)
            if self._waiters:
                self._serve()

    def wake(self) -> None:
        """Make the waiters check whether to give up."""
        with self._lock:
            for waiter in tuple(self._waiters):
                waiter.changed.notify()

    def _note_collected(self, now: float) -> None:
        held = self._held
        slots = self.slots() if self.slots and (held.messages or held.runs) else None
        if slots is None or not slots.idle or held.occupied(slots) < slots.number:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._collected = self._idle_since is not None and now - self._idle_since >= COLLECTED_AFTER_SECONDS

    def _rank(self, waiter: Waiter) -> int:
        return 0 if self._turns is None else self._turns.rank(waiter.queue)

    def _serve(self, changed: str | None = None) -> None:
        """Reserve free capacity for the waiters, in their order. Under the lock.

        A waiter without a reservation keeps those of its kind waiting: an idle queue waits for its turn, a
        busy one for capacity. Where there are turns, a queue may have capacity of its own, too, or lack it.
        The queue's own capacity is looked at where it has changed: of one queue, or perhaps of any.
        """
        refused: set[tuple[bool, bool, bool]] = set()
        turns, polls = self._turns, self._asked.polls
        for waiter in tuple(self._waiters):
            queue = waiter.queue
            kind = queue in self._busy, waiter.fifo, turns is not None and bool(turns.overtakers(queue))
            has_own = turns is not None and changed in (None, queue)
            if kind in refused and not has_own and queue not in polls:
                continue
            if (reservation := self._reserve(waiter)) is not None:
                waiter.reservation = reservation
                self._waiters.remove(waiter)
                waiter.changed.notify()
            elif queue not in polls and not (turns is not None and turns.is_full(queue)):
                refused.add(kind)

    def _reserve(self, waiter: Waiter) -> Reservation | None:
        queue, fifo, now = waiter.queue, waiter.fifo, self._clock.monotonic()
        if self.loop_late is not None and stands_still(self.loop_late(now)):
            return None  # nobody would begin what a poll brings
        ask = ask_for(self._snapshot(queue, fifo=fifo))
        if ask is None:
            return None
        reservation = Reservation(queue, fifo, ask.messages, ask.wait, now)
        self._asked.add(reservation, likely=queue in self._busy)
        return reservation

    def _snapshot(self, queue: str, *, fifo: bool) -> Snapshot:
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
            limit=self._limit(slots),
            prefetch_count=slots.prefetch_count,
            occupied=self._held.occupied(slots),
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
        slots = self.slots() if self.slots else Slots(self._prefetch_count, self._prefetch_count)
        return replace(slots, collecting=True) if self._collected else slots

    def _limit(self, slots: Slots) -> int:
        if slots.prefetch_count <= 0:
            return UNLIMITED
        runs = self._recent_runs
        pace = runs.per_second(self._clock.monotonic())
        return message_limit(slots, pace, runs.seconds, self._prefetch_seconds)
