"""Polls of one queue: when the next one is due, how long it waits, and what its result means.

One poll at a time waits for messages. While batches come back full, helpers poll too. A poll whose answer is
late is not aborted, because SQS may already have handed out messages to it, which would then be lost until
their timeout. It counts as unanswered, and another poll replaces it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity, Reservation, Waiter
from celery_sqs_visibility.errors import (
    AnswerLostError,
    QueueDoesNotExistError,
    SQSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.backoff import pause, reply_grace
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS
from celery_sqs_visibility.policy.options import QueueOptions
from celery_sqs_visibility.policy.polling import Attempt, Attempts, PollSchedule
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: Polls of a queue at the same time while its batches come back full.
MAX_PARALLEL_POLLS: Final = 12

#: The limit including polls that hang. Once this many are stuck, more do not help.
MAX_POLLS: Final = 20

#: SQS may answer with fewer messages than it has. If a poll returns at once, without waiting for messages to
#: arrive, this many count as a full batch.
NEARLY_FULL_BATCH: Final = 5
ANSWERED_AT_ONCE_SECONDS: Final = 0.5

#: A FIFO queue is asked for one message at a time, so every message may be followed by another. A helper that
#: finds none shows that there are few groups, so the next helper starts after this pause.
HELPER_PAUSE_SECONDS: Final = 1.0

#: SQS refuses a poll within this time. One that lasts longer waits for messages.
REFUSED_WITHIN_SECONDS: Final = 2.0

#: After it creates a queue, SQS needs a second to know it, and may refuse this many polls.
NEW_QUEUE_FAILURES: Final = 2


class Polling(enum.Enum):
    """Stages of a queue's polling."""

    NEW = "it was not started yet"
    ACTIVE = "it is polled, and has a share of the capacity"
    PAUSED = "it is not polled until its pause ends, and others have its share"
    STOPPED = "it is polled no more"


class PollState(enum.Enum):
    """Stages of a poll: `ASKED`, `ANSWERED`, `TAKEN`. The first two may become overdue."""

    ASKED = "the request is under way"
    UNANSWERED = "the answer is late, and the reservation was given back"
    ANSWERED = "the call has returned, and its messages are being taken"
    STUCK = "taking its messages lasts for too long"
    TAKEN = "its messages are held, or not kept"


#: The state of a poll that is overdue.
OVERDUE = {PollState.ASKED: PollState.UNANSWERED, PollState.ANSWERED: PollState.STUCK}


class Failure(enum.Enum):
    """Reasons why a poll fails."""

    OUTAGE = "SQS does not answer, or refuses"
    CUT = "something closed the connection while SQS let the poll wait"
    EXPECTED = "it was counted before, or the queue is not there yet, or not any more"


@dataclass(slots=True, eq=False)
class Poll:
    """One poll, until its messages are taken. Instants are monotonic."""

    reservation: Reservation
    wait: int  # seconds that SQS may wait for a message
    started: float
    overdue_at: float  # from this instant on another poll may replace it
    helper: bool  # whether it polls beside the poll that waits
    attempt: Attempt | None  # in a FIFO queue
    state: PollState = PollState.ASKED
    more: bool = False  # whether another poll is likely to bring messages, too

    @property
    def overdue(self) -> bool:
        """Whether it is late, so that another poll may replace it."""
        return self.state in OVERDUE.values()


class QueuePolls:
    """The polls of one queue, from `start` to `stop`. Not thread-safe: the driver locks.

    Args:
        queue: the queue.
        capacity: shared with the other queues.
        options: of the queue.
        served: called when a poll that waited for capacity gets it.

    Attributes:
        in_flight: polls under way, including those whose messages are being taken.
        failures: polls that failed in a row.
        answered: whether a poll has ever succeeded.
        cuts: number of polls whose connection was cut while they waited at SQS.
        schedule: when to poll.
        state: the stage of the polling.
    """

    def __init__(
        self,
        queue: Queue,
        capacity: Capacity,
        options: QueueOptions,
        served: Callable[[], object],
    ) -> None:
        self.queue = queue
        self.schedule = PollSchedule(options.polling_interval, options.polling_interval_max)
        self._capacity = capacity
        self._wait = options.wait_time_seconds
        self._attempts = Attempts(options.visibility_timeout)
        self._paused_until = -math.inf
        self._served = served
        self.in_flight: list[Poll] = []
        self.failures = 0
        self.answered = False
        self.cuts = 0
        self.state = Polling.NEW
        self._waiter: Waiter | None = None  # waits for the capacity of the next long poll
        self._long_poll: Poll | None = None  # the poll that waits for messages, unless it is overdue
        self._helpers = 0  # polls to start beside the one that waits
        self._no_helper_before = -math.inf
        self._not_before = -math.inf  # the instant from which the next poll may begin

    def start(self, now: float) -> None:
        """Poll from that monotonic instant on. Idempotent; has no effect after `stop`."""
        if self.state is Polling.NEW:
            self.state = Polling.ACTIVE
            self._not_before = now
            self._capacity.add_queue(self.queue.name)

    def stop(self, now: float) -> None:
        """Start no more polls. The messages of polls in flight are still taken. Idempotent."""
        before, self.state = self.state, Polling.STOPPED
        if before is Polling.STOPPED:
            return
        if before is Polling.ACTIVE:
            self._give_up_share(now)
        self._capacity.forget_polls(self.queue.name)

    def pause(self, until: float, now: float) -> None:
        """Start no poll before that monotonic instant. An instant in the past ends the pause."""
        self._paused_until = until
        if self.state is Polling.ACTIVE and now < until:
            self.state = Polling.PAUSED
            self._give_up_share(now)
        elif self.state is Polling.PAUSED and now >= until:
            self.state = Polling.ACTIVE
            self._capacity.add_queue(self.queue.name)
            self.schedule.poll_now()
            self._not_before = now

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, and no poll is in flight except overdue ones."""
        return self.state is Polling.STOPPED and all(poll.overdue for poll in self.in_flight)

    def due(self, now: float) -> float | None:
        """The monotonic instant from which `take` returns a poll; `None` if it is not known."""
        if self.state is Polling.ACTIVE:
            return now if self._helpers else self._next_long_poll()
        if self.state is Polling.PAUSED and self._paused_until < math.inf:
            return self._paused_until
        return None

    def ready(self) -> int:
        """Number of polls that are due, given that at least one is."""
        return self._helpers + (self._long_poll is None)

    def take(self, now: float) -> Poll | None:
        """Take the next poll, to be made at once; `None` if none is due, or there is no capacity."""
        if self.state is Polling.PAUSED:
            self.pause(self._paused_until, now)  # the pause may be over
        if self.state is not Polling.ACTIVE:
            return None
        due = self._next_long_poll()
        if due is not None and due <= now and (poll := self._take_long_poll(now)) is not None:
            return poll
        return self._take_helper(now) if self._helpers else None

    def _next_long_poll(self) -> float | None:
        if self._long_poll is not None:
            return None
        if (waiter := self._waiter) is not None:
            return None if waiter.reservation is None else waiter.reservation.since
        return max(self.schedule.next_poll(), self._not_before)

    def _take_long_poll(self, now: float) -> Poll | None:
        if (waiter := self._waiter) is None:
            self._expect_due(now)
            waiter = self._waiter = self._new_waiter(now)
        if waiter.reservation is None:
            return None
        wait = 0 if self.failures else min(self._wait, waiter.reservation.wait)  # a probe, until SQS answers
        self._long_poll = self._begin(waiter.reservation, wait, now, helper=False)
        self._waiter = None  # last: if memory runs out before, the reservation is kept
        return self._long_poll

    def _take_helper(self, now: float) -> Poll | None:
        self._helpers -= 1
        waiter = self._new_waiter(now)
        poll: Poll | None = None
        try:
            if waiter.reservation is not None:
                poll = self._begin(waiter.reservation, 0, now, helper=True)
        finally:
            if poll is None:
                self._capacity.remove_waiter(waiter, now)
        return poll

    def _new_waiter(self, now: float) -> Waiter:
        waiter = Waiter(self.queue.name, self.queue.fifo, self._wake)
        try:
            self._capacity.add_waiter(waiter, now)
        except BaseException:  # such as MemoryError
            self._capacity.remove_waiter(waiter, now)
            raise
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None:  # otherwise the caller looks at the reservation itself
            self._served()

    def _begin(self, reservation: Reservation, wait: int, now: float, *, helper: bool) -> Poll:
        attempt = self._attempts.begin(now) if self.queue.fifo else None
        poll = Poll(reservation, wait, now, now + wait + reply_grace(), helper, attempt)
        self.in_flight.append(poll)
        return poll

    def _give_up_share(self, now: float) -> None:
        self._helpers = 0
        waiter, self._waiter = self._waiter, None
        self._capacity.remove_queue(self.queue.name)
        if waiter is not None:
            self._capacity.remove_waiter(waiter, now)

    def expect(self, message_id: str, at: float) -> bool:
        """Expect a message at that monotonic instant. Returns whether a poll is due sooner."""
        return self.schedule.expect(message_id, at)

    def look(self, now: float, made: Collection[Poll]) -> None:
        """End polls that no thread makes any more, and check for visible messages. Twice a second.

        `made` are the polls that threads are making.
        """
        for poll in [each for each in self.in_flight if each not in made]:
            self.failures += 1
            self.ended(poll, now)  # memory ran out as its thread ended it
        self._expect_due(now)

    def _expect_due(self, now: float) -> None:
        """If a message is visible again and no poll is in flight, skip the rotation of idle queues."""
        if self.state is Polling.ACTIVE and not self.in_flight:
            due = self.schedule.next_expected()
            if due is not None and due <= now:
                self._capacity.expect(self.queue.name, now)

    def succeeded(self, poll: Poll, message_ids: Collection[str], now: float) -> None:
        """Note that SQS answered with these messages. `taken` and `ended` follow."""
        probe = self.failures > 0 and poll.wait < self._wait
        self.failures = 0
        self.answered = True
        took = now - poll.started
        poll.more = self._is_more_likely(len(message_ids), now, 0.0 if poll.helper else took)
        if poll.helper and self.queue.fifo:  # it may find none because this worker runs their groups
            self.schedule.arrived(message_ids)
        elif message_ids or not probe:  # after a probe, the long poll that follows finds any messages
            self.schedule.polled(now, message_ids, took=took if poll.wait or not self._wait else math.inf)
        self._note_answer(poll, len(message_ids), now)

    def failed(self, poll: Poll, error: SQSError, now: float) -> Failure:
        """Note that the request failed. Returns the kind of failure; `ended` follows."""
        if poll.attempt and isinstance(error, (UnavailableError, UnrecognizedResponseError)):
            self._attempts.unanswered(poll.attempt)
        failure = self._meaning_of(poll, error, now)
        if failure is Failure.CUT:
            self.cuts += 1
        self._note_answer(poll, 0, now)
        return failure

    def _meaning_of(self, poll: Poll, error: SQSError, now: float) -> Failure:
        """The kind of failure. Counts it, unless it counted when the poll became overdue."""
        if isinstance(error, AnswerLostError) and REFUSED_WITHIN_SECONDS <= now - poll.started < poll.wait:
            self.failures += 1
            return Failure.CUT
        missing = isinstance(error, QueueDoesNotExistError)
        if poll.overdue or (missing and self.state is Polling.STOPPED):  # its last consumer deleted the queue
            return Failure.EXPECTED
        self.failures += 1
        is_new = self.queue.origin == "created" and not self.answered and self.failures <= NEW_QUEUE_FAILURES
        return Failure.EXPECTED if missing and is_new else Failure.OUTAGE

    def _is_more_likely(self, messages: int, now: float, took: float) -> bool:
        if self.queue.fifo:
            return messages > 0 and now >= self._no_helper_before
        return messages >= (NEARLY_FULL_BATCH if took < ANSWERED_AT_ONCE_SECONDS else BATCH_ENTRIES)

    def _note_answer(self, poll: Poll, messages: int, now: float) -> None:
        self._capacity.answered(poll.reservation, messages, now)
        poll.state = PollState.ANSWERED
        poll.overdue_at = now + HUNG_AFTER_SECONDS

    def taken(self, poll: Poll, now: float) -> None:
        """Note that the poll's messages are held or discarded."""
        poll.state = PollState.TAKEN
        self._capacity.taken(poll.reservation, now)

    def ended(self, poll: Poll, now: float) -> None:
        """End the poll, so that another may follow. Idempotent."""
        if poll not in self.in_flight:
            return
        self.in_flight.remove(poll)
        if poll.state is not PollState.TAKEN:
            self.taken(poll, now)
        replaced = poll is not self._long_poll
        if not replaced:
            self._long_poll = None
        if self.state is not Polling.ACTIVE:
            return
        if poll.helper and not poll.more:
            self._no_helper_before = now + HELPER_PAUSE_SECONDS
        elif poll.more and (poll.helper or self._may_add_helper()):
            self._helpers += 1
        if not replaced:
            self._not_before = now + pause(self.failures) if self.failures else now

    def _may_add_helper(self) -> bool:
        """Whether one more may run, besides the next long poll and those in flight."""
        return not self.failures and len(self.in_flight) + self._helpers + 1 < MAX_PARALLEL_POLLS

    def note_late(self, now: float) -> list[Poll]:
        """Mark polls that became overdue, and return them. The capacity of unanswered ones is freed."""
        overdue = [poll for poll in self.in_flight if poll.overdue_at <= now and poll.state in OVERDUE]
        for poll in overdue:
            poll.state = OVERDUE[poll.state]
            if poll is self._long_poll:
                self._long_poll = None
            if poll.state is PollState.UNANSWERED:
                self._capacity.answered(poll.reservation, 0, now)
                self.failures += 1
        if overdue:
            self._not_before = now
        return overdue

    def waits_in_time(self, now: float) -> bool:
        """Whether a poll is in flight and none is overdue. Any thread."""
        in_flight = self.in_flight.copy()
        return bool(in_flight) and all(poll.overdue_at > now for poll in in_flight)

    def late(self, now: float) -> float:
        """How many seconds a poll or its answer is overdue; 0 while it waits for capacity. Any thread."""
        if self.state is not Polling.ACTIVE:
            return 0.0
        poll = self._long_poll
        due = self._next_long_poll() if poll is None else poll.started + poll.wait
        return 0.0 if due is None else max(0.0, now - due)

    def accepted(self, now: float) -> bool:
        """Whether SQS has ever answered a poll, or lets one wait for messages. Any thread."""
        waiting = (poll for poll in self.in_flight.copy() if not poll.overdue)
        return self.answered or any(now - poll.started >= REFUSED_WITHIN_SECONDS for poll in waiting)
