"""How many messages may still be asked for: one reservation shared by all queues."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.prefetch import (
    Duration,
    Pace,
    Slots,
    capacity,
    enough_to_ask,
    waiting_for_eta,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: A poll's wait while other queues wait for their turn, since it keeps their room. Whole seconds.
CROWDED_WAIT = 1


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for that many messages, to be polled for.

    Attributes:
        queue: who polls.
        messages: 1 to 10.
        crowded: whether queues are left without room, so that the poll should be short.
    """

    queue: str
    messages: int
    crowded: bool


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Somebody who waits in line for room, to poll that queue."""

    queue: str


class Room:
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
        self._changed = threading.Condition()  # guards everything below
        self._prefetch_count = 0  # unlimited, as in kombu, until somebody says otherwise
        self._slots = slots
        self._pace = Pace()
        self._duration = Duration()
        self._held = 0
        self._running_on: WeakSet[object] = WeakSet()  # runs whose messages were settled when they began
        self._reserved = 0
        self._queues = 0  # that poll or want to
        self._polls: Counter[str] = Counter()  # in flight, by queue
        self._line: deque[Turn] = deque()  # who waits for room, first come first

    @property
    def prefetch_count(self) -> int:
        """Celery's, as last told; 0 is unlimited."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        with self._changed:
            self._prefetch_count = count
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """How many messages are held."""
        return self._held

    def join(self) -> None:
        """A queue wants to poll: it gets its share."""
        with self._changed:
            self._queues += 1

    def leave(self) -> None:
        """A queue that joined polls no more."""
        with self._changed:
            self._queues -= 1
            self._changed.notify_all()

    def reserve(
        self, queue: str, timeout: float, given_up: Callable[[], bool] = lambda: False
    ) -> Reservation | None:
        """Wait up to `timeout` seconds for room worth a request, in line with others; `None` if none came.

        First come, first served: a queue that has just polled does not take the next one's turn. Who has
        `given_up` meanwhile leaves the line at the next `interrupt`.
        """
        with self._changed:
            turn = Turn(queue)
            self._line.append(turn)
            try:
                self._changed.wait_for(lambda: given_up() or self._is_next(turn), timeout)
                return self._reserve(queue) if self._is_next(turn) and not given_up() else None
            finally:
                self._line.remove(turn)
                self._changed.notify_all()

    def _is_next(self, turn: Turn) -> bool:
        return self._line[0] is turn and self._worth_asking(turn.queue)

    def _reserve(self, queue: str) -> Reservation:
        free = self._free()
        # Each queue without a poll in flight is to have its share, but for the one that asks.
        others = max(0, self._queues - len(self._polls.keys() | {queue}))
        messages = min(BATCH_ENTRIES, max(1, free // (1 + others)))
        self._reserved += messages
        self._polls[queue] += 1
        return Reservation(queue, messages, crowded=self._left_to_queues() < others)

    def received(self, reservation: Reservation, messages: int) -> None:
        """The poll is over and brought that many."""
        with self._changed:
            self._polls[reservation.queue] -= 1
            self._polls += Counter()  # drops the zero
            self._reserved -= reservation.messages
            self._held += messages
            if messages < reservation.messages:
                self._changed.notify_all()

    def unexpected(self, messages: int) -> None:
        """That many came after all, when the reservation for them had been given back."""
        with self._changed:
            self._held += messages

    def gave_back(self, *, began: float | None = None) -> None:
        """One of the held was settled; `began` is when its run did, on the monotonic clock, if it ran."""
        with self._changed:
            self._held -= 1
            if began is not None:
                self._note_run(began)
            self._tell_next()

    def runs_on(self, run: object) -> None:
        """One of the held was settled, and its run begins: it has a slot until it `ran`, or is forgotten."""
        with self._changed:
            self._held -= 1
            self._running_on.add(run)
            self._tell_next()

    def ran(self, run: object, began: float) -> None:
        """That run has ended, which began at that monotonic instant and ran on."""
        with self._changed:
            self._running_on.discard(run)
            self._note_run(began)
            self._tell_next()

    def _note_run(self, began: float) -> None:
        now = self._clock.monotonic()
        self._pace.note(now)
        self._duration.note(now - began)

    def _tell_next(self) -> None:
        if self._line and self._worth_asking(self._line[0].queue):
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Have those who wait look at the world again."""
        with self._changed:
            self._changed.notify_all()

    def _limit(self, slots: Slots) -> int:
        pace = self._pace.per_second(self._clock.monotonic())
        return capacity(self._prefetch_count, slots, pace, self._duration.seconds, self._prefetch_seconds)

    def _pool(self) -> Slots:
        return self._slots() if self._slots else Slots(self._prefetch_count, self._prefetch_count)

    def _occupied(self) -> int:
        return self._held + len(self._running_on)

    def _free(self) -> int:
        return self._limit(self._pool()) - self._occupied() - self._reserved

    def _worth_asking(self, queue: str) -> bool:
        slots = self._pool()
        limit = self._limit(slots)
        taken = self._occupied() + self._reserved
        waiting = waiting_for_eta(self._prefetch_count, slots)
        if limit - taken >= enough_to_ask(taken - waiting, slots.number, limit - waiting, BATCH_ENTRIES):
            return True
        return queue not in self._polls and self._is_slot_free(slots) and self._left_to_queues() > 0

    def _is_slot_free(self, slots: Slots) -> bool:
        return self._occupied() - waiting_for_eta(self._prefetch_count, slots) < slots.number

    def _left_to_queues(self) -> int:
        """Room for polls of one message each: while a slot is free, as many as Celery's prefetch count.

        A poll in flight then counts as one message, whatever it has reserved, since an idle queue's long poll
        brings none: otherwise the idle queues would keep the slots that a busy one could use. And where there
        are more queues than slots an idle queue is still polled, and not every second.
        """
        slots = self._pool()
        limit = self._limit(slots)
        if not self._is_slot_free(slots):
            return limit - self._occupied() - self._reserved
        return max(limit, self._prefetch_count) - self._occupied() - self._polls.total()
