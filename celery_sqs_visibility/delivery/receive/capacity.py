"""How many messages may still be asked for: one reservation shared by all queues.

`policy.capacity` decides; here are the lock, the counters and the line of those who wait.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.prefetch import Duration, Pace, Slots, capacity, waiting_for_eta
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.receive_size import LIKELY_SECONDS, Snapshot, ask_for


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Room for that many messages, to be polled for.

    Attributes:
        queue: whose poll it is.
        fifo: whether that is a FIFO queue.
        messages: 1 to 10.
        wait: seconds that the poll may wait for them.
        since: the monotonic instant at which the room was reserved.
    """

    queue: str
    fifo: bool
    messages: int
    wait: int
    since: float

    @property
    def crowded(self) -> bool:
        """Whether queues take turns, so that the poll is to be short."""
        return self.wait < WAIT_TIME_SECONDS


@dataclass(slots=True, eq=False)
class Waiter:
    """A place in the line of queues that want to be polled.

    Attributes:
        queue: which queue.
        fifo: whether it is a FIFO queue.
        told: notified when there is a reservation, or a reason to give up. Of the room's lock.
        reservation: what it waited for.
    """

    queue: str
    fifo: bool
    told: threading.Condition
    reservation: Reservation | None = None


@dataclass(slots=True)
class Held:
    """Messages that are held, and runs whose messages were settled when they began."""

    messages: int = 0
    runs: WeakSet[object] = field(default_factory=WeakSet)

    @property
    def occupied(self) -> int:
        """How many there are of both."""
        return self.messages + len(self.runs)


class ReceiveCapacity:
    """Counts what is held and what is asked for against what may be. Safe to call from any thread.

    Args:
        prefetch_seconds: seconds of work to hold beyond Celery's prefetch count.
        clock: for the pace.
        slots: tells the slots of the pool; without one there are as many as the prefetch count says.
    """

    def __init__(
        self, prefetch_seconds: float, clock: Clock, slots: Callable[[], Slots] | None = None
    ) -> None:
        self._prefetch_seconds = prefetch_seconds
        self._clock = clock
        # Guards everything below. Reentrant: Celery's cold shutdown stops polls in a signal handler, on a
        # thread that may be here just now.
        self._lock = threading.RLock()
        self._prefetch_count = 0  # unlimited, as in kombu, until somebody says otherwise
        self._slots = slots
        self._pace = Pace()
        self._duration = Duration()
        self._held = Held()
        self._fifo = Held()  # those of FIFO queues
        self._queues = 0  # that poll or want to
        self._left: set[str] = set()  # those that do no more, though their last poll may be in flight
        self._busy: set[str] = set()  # queues whose last poll brought something
        self._polls: Counter[str] = Counter()  # in flight, by queue
        self._likely: set[Reservation] = set()  # of polls in flight that should bring what they ask for
        self._expected = 0  # messages that these ask for
        self._fifo_expected = 0  # and those of FIFO queues among them
        self._unlikely: Counter[str] = Counter()  # messages that the other polls ask for, by queue
        self._line: deque[Waiter] = deque()  # who waits for room, first come first

    @property
    def prefetch_count(self) -> int:
        """Celery's, as last told; 0 is unlimited."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        with self._lock:
            self._prefetch_count = count
            self._serve()

    @property
    def held(self) -> int:
        """How many messages are held."""
        return self._held.messages

    def add_queue(self) -> None:
        """A queue wants to poll: it gets its share."""
        with self._lock:
            self._queues += 1

    def remove_queue(self, queue: str | None = None) -> None:
        """A queue that joined polls no more. Called in a signal handler, too: serves nobody."""
        with self._lock:
            self._queues -= 1
            if queue is not None:
                self._left.add(queue)
                self._busy.discard(queue)

    def reserve(
        self,
        queue: str,
        timeout: float | None,
        given_up: Callable[[], bool] = lambda: False,
        *,
        fifo: bool = False,
    ) -> Reservation | None:
        """Wait up to `timeout` seconds (`None`: as long as it takes) for room; `None` if none came.

        First come, first served: whoever waits keeps its place until there is room for it. Whoever has
        `given_up` meanwhile leaves the line at the next `interrupt`.
        """
        with self._lock:
            waiter = self.add_waiter(queue, fifo=fifo)
            try:
                waiter.told.wait_for(lambda: waiter.reservation is not None or given_up(), timeout)
            finally:
                if waiter.reservation is None:
                    self._line.remove(waiter)
            return waiter.reservation

    def add_waiter(self, queue: str, *, fifo: bool = False) -> Waiter:
        """Take a place in the line, and be served at once if there is room."""
        with self._lock:
            self._left.discard(queue)
            waiter = Waiter(queue, fifo, threading.Condition(self._lock))
            self._line.append(waiter)
            self._serve()
            return waiter

    def received(self, reservation: Reservation, messages: int) -> None:
        """The poll is over and brought that many."""
        queue = reservation.queue
        with self._lock:
            self._doubt(reservation)
            self._unlikely[queue] -= reservation.messages
            self._polls[queue] -= 1
            if not self._polls[queue]:
                del self._polls[queue], self._unlikely[queue]
            if messages and queue not in self._left:
                self._busy.add(queue)
            elif queue not in self._polls:  # else the other polls of the queue say how it is
                self._busy.discard(queue)
            self._hold(messages, fifo=reservation.fifo)
            self._serve()

    def hold(self, messages: int, *, fifo: bool = False) -> None:
        """That many came after all, when the reservation for them had been given back."""
        with self._lock:
            self._hold(messages, fifo=fifo)

    def expect(self, queue: str) -> None:
        """A message is known to be in that queue: its next poll is likely to bring it."""
        with self._lock:
            if queue not in self._left:
                self._busy.add(queue)
            self._serve()

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Ward.look_after`: polls that wait in vain keep their room no longer."""
        with self._lock:
            for reservation in [each for each in self._likely if each.since + LIKELY_SECONDS <= now]:
                self._doubt(reservation)
                self._busy.discard(reservation.queue)
            self._serve()

    def release(self, *, began: float | None = None, fifo: bool = False) -> None:
        """One of the held was settled; `began` is when its run did, on the monotonic clock, if it ran."""
        with self._lock:
            self._hold(-1, fifo=fifo)
            if began is not None:
                self._note_run(began)
            self._serve()

    def start_run(self, run: object, *, fifo: bool = False) -> None:
        """One of the held was settled, and its run begins: it has a slot until it `ran`, or is forgotten."""
        with self._lock:
            self._hold(-1, fifo=fifo)
            self._held.runs.add(run)
            if fifo:
                self._fifo.runs.add(run)
            self._serve()

    def end_run(self, run: object, began: float) -> None:
        """That run has ended, which began at that monotonic instant and ran on."""
        with self._lock:
            self._held.runs.discard(run)
            self._fifo.runs.discard(run)
            self._note_run(began)
            self._serve()

    def wake(self) -> None:
        """Have those who wait ask themselves whether to give up. Called in a signal handler, too."""
        with self._lock:
            for waiter in tuple(self._line):
                waiter.told.notify()

    def _hold(self, messages: int, *, fifo: bool) -> None:
        self._held.messages += messages
        if fifo:
            self._fifo.messages += messages

    def _note_run(self, began: float) -> None:
        now = self._clock.monotonic()
        self._pace.note(now)
        self._duration.note(now - began)

    def _doubt(self, reservation: Reservation) -> None:
        """That poll is not likely to bring anything; harmless if that is known."""
        if reservation in self._likely:
            self._likely.remove(reservation)
            self._expected -= reservation.messages
            self._fifo_expected -= reservation.messages if reservation.fifo else 0
            self._unlikely[reservation.queue] += reservation.messages

    def _serve(self) -> None:
        """Give those who wait what there is for them, in the order of their coming. Under the lock.

        Who has to wait keeps nobody else waiting: an idle queue waits for its turn, a busy one for room.
        """
        refused: set[tuple[bool, bool]] = set()
        for waiter in tuple(self._line):
            alike = waiter.queue in self._busy, waiter.fifo
            if alike in refused and waiter.queue not in self._polls:
                continue
            if (reservation := self._reserve(waiter)) is not None:
                waiter.reservation = reservation
                self._line.remove(waiter)
                waiter.told.notify()
            elif waiter.queue not in self._polls:
                refused.add(alike)

    def _reserve(self, waiter: Waiter) -> Reservation | None:
        queue, fifo = waiter.queue, waiter.fifo
        ask = ask_for(self._snapshot(queue, fifo=fifo))
        if ask is None:
            return None
        reservation = Reservation(queue, fifo, ask.messages, ask.wait, self._clock.monotonic())
        self._polls[queue] += 1
        if queue in self._busy:
            self._likely.add(reservation)
            self._expected += ask.messages
            self._fifo_expected += ask.messages if fifo else 0
        else:
            self._unlikely[queue] += ask.messages
        return reservation

    def _snapshot(self, queue: str, *, fifo: bool) -> Snapshot:
        slots = self._pool()
        waiting = waiting_for_eta(self._prefetch_count, slots)
        own_unlikely = self._unlikely[queue]
        fifo_taken = self._fifo.occupied + self._fifo_expected + own_unlikely
        polled = queue in self._polls
        return Snapshot(
            slots=slots.number,
            limit=self._limit(slots) - waiting,
            prefetch_count=self._prefetch_count - waiting,
            occupied=self._held.occupied - waiting,
            expected=self._expected,
            unlikely=self._unlikely.total(),
            idle_polls=self._polls.total() - len(self._likely),
            queues=self._queues,
            unpolled=max(0, self._queues - len(self._polls) - (not polled)),
            unpolled_busy=len(self._busy - self._polls.keys() - {queue}),
            busy=queue in self._busy,
            polled=polled,
            own_unlikely=own_unlikely,
            most=1 if fifo else BATCH_ENTRIES,
            fifo_room=max(0, (slots.number or BATCH_ENTRIES) + waiting - fifo_taken) if fifo else None,
        )

    def _limit(self, slots: Slots) -> int:
        pace = self._pace.per_second(self._clock.monotonic())
        return capacity(self._prefetch_count, slots, pace, self._duration.seconds, self._prefetch_seconds)

    def _pool(self) -> Slots:
        return self._slots() if self._slots else Slots(self._prefetch_count, self._prefetch_count)
