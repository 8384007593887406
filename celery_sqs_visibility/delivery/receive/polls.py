"""The polls of one queue: requests under way, their results, and answers that are late."""

from __future__ import annotations

import enum
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.delivery.receive.receive_attempts import Attempt, Attempts
from celery_sqs_visibility.delivery.receive.reservations import Reservation
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS
from celery_sqs_visibility.errors import (
    QueueDoesNotExistError,
    SQSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.events import emit, has_listener
from celery_sqs_visibility.measurements import ReceiveEnded
from celery_sqs_visibility.policy.backoff import reply_grace
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.polling import PollSchedule

logger = logging.getLogger(__name__)

#: What SQS refuses, it refuses within this time, and does not wait for messages.
REFUSED_WITHIN_SECONDS: Final = 2.0

#: Polls of a queue that this process has made which SQS may refuse: all of it knows a queue after a second.
NEW_QUEUE_FAILURES: Final = 2

#: Takes the messages of a poll, with the monotonic instants before and after the call.
Arrived = Callable[[Queue, Sequence[ReceivedMessage], float, float], None]


class PollState(enum.Enum):
    """How far a poll is. A poll goes from `ASKED` to `ANSWERED`, both of which may be overdue meanwhile."""

    ASKED = "the request is under way"
    UNANSWERED = "the answer is late, and the reservation given back"
    ANSWERED = "the call has returned, and its messages are being taken"
    STUCK = "its messages are being taken for too long"


#: The state of a poll that is overdue.
OVERDUE = {PollState.ASKED: PollState.UNANSWERED, PollState.ANSWERED: PollState.STUCK}


@dataclass(slots=True, eq=False)
class Poll:
    """A poll of one thread, from before the request until its messages are taken. Instants are monotonic."""

    reservation: Reservation
    wait: int  # seconds that SQS may wait for a message
    started: float
    overdue_at: float  # from this instant on its thread may be replaced
    helper: bool = False  # whether a helper makes it, while batches come back full
    attempt: Attempt | None = None  # in a FIFO queue
    state: PollState = PollState.ASKED
    thread: threading.Thread = field(default_factory=threading.current_thread)

    @property
    def overdue(self) -> bool:
        """Whether its thread may be replaced."""
        return self.state in OVERDUE.values()


class Polls:
    """Makes the polls of one queue, from any of its threads. For the arguments see `Receiver`."""

    def __init__(
        self,
        queue: Queue,
        capacity: ReceiveCapacity,
        schedule: PollSchedule,
        wait: int,
        options: ReceiveOptions,
        clock: Clock,
        arrived: Arrived,
        pauses: Pauses | None = None,
    ) -> None:
        self._queue = queue
        self._capacity = capacity
        self._schedule = schedule
        self._wait = wait
        self._options = options
        self._clock = clock
        self._arrived = arrived
        self._pauses = pauses
        self._outage = Outage(logger, "receive from SQS", queue.name, clock)
        self._attempts = Attempts(options.visibility_timeout)
        #: Guards everything below, and the schedule. Reentrant: Celery's cold shutdown stops polling in a
        #: signal handler, on the main thread, which may hold it just now.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.in_flight: list[Poll] = []
        self.failures = 0  # in a row
        self.answered = False  # whether a poll has ever succeeded
        self.stopping = False

    @property
    def paused(self) -> bool:
        """Whether no poll is to begin for now."""
        return self._pauses is not None and self._pauses.get(self._queue.name) is not None

    @property
    def halted(self) -> bool:
        """Whether no poll is to begin, for now or ever."""
        return self.stopping or self.paused

    def poll(self, reservation: Reservation, *, wait: int, helper: bool = False) -> int:
        """Make one request, and see to what follows from it; how many messages it brought."""
        messages: list[ReceivedMessage] = []
        poll = self._begin(reservation, wait, helper=helper)
        if poll is None:
            self._capacity.received(reservation, 0)
            return 0
        try:
            options = replace(self._options, attempt_id=poll.attempt.id) if poll.attempt else self._options
            messages = self._queue.sqs.receive(self._queue.url, reservation.messages, wait, options)
        except SQSError as error:
            self._fail(poll, error)
        else:
            self._succeed(poll, [message["MessageId"] for message in messages])
        finally:
            self._answered(poll, len(messages))
            try:
                if messages:
                    self._arrived(self._queue, messages, poll.started, self._clock.monotonic())
            finally:
                with self.lock:
                    self.in_flight.remove(poll)
                    self.changed.notify_all()
        return len(messages)

    def wait_until_over(self, until: float) -> bool:
        """Wait for the polls in flight until that monotonic instant; whether all are over."""
        with self.lock:
            return self.changed.wait_for(
                lambda: not self.in_flight, max(0.0, until - self._clock.monotonic())
            )

    def accepted(self, now: float) -> bool:
        """Whether SQS has ever answered a poll, or lets the first one wait for messages."""
        waiting = (poll for poll in list(self.in_flight) if not poll.overdue)
        return self.answered or any(now - poll.started >= REFUSED_WITHIN_SECONDS for poll in waiting)

    @property
    def error(self) -> SQSError | None:
        """The latest of an outage; `None` when there is none."""
        return self._outage.error

    def give_up_overdue(self, now: float) -> int:
        """Give back the capacity of polls without an answer in time; how many they are."""
        if all(poll.overdue_at > now for poll in self.in_flight.copy()):  # as nearly always
            return 0
        with self.lock:
            overdue = [poll for poll in self.in_flight if poll.overdue_at <= now and not poll.overdue]
            for poll in overdue:
                poll.state = OVERDUE[poll.state]
        unanswered = [poll for poll in overdue if poll.state is PollState.UNANSWERED]
        for poll in unanswered:
            self._capacity.received(poll.reservation, 0)
        if unanswered:
            self._count_failure(UnavailableError("ReceiveMessage gets no answer", action="ReceiveMessage"))
            self._queue.sqs.discard_idle_connections()
        return len(unanswered)

    def _begin(self, reservation: Reservation, wait: int, *, helper: bool) -> Poll | None:
        started = self._clock.monotonic()
        poll = Poll(reservation, wait, started, started + wait + reply_grace(), helper)
        with self.lock:
            if self.halted:  # checked here, or a thread that waits for the polls in flight misses this one
                return None
            self.in_flight.append(poll)
            if self._queue.fifo:
                poll.attempt = self._attempts.begin(started)
            return poll

    def _answered(self, poll: Poll, messages: int) -> None:
        with self.lock:
            late = poll.state is PollState.UNANSWERED
            poll.state = PollState.ANSWERED
            poll.overdue_at = self._clock.monotonic() + HUNG_AFTER_SECONDS
        if late:
            self._capacity.hold(messages, queue=self._queue.name, fifo=self._queue.fifo)
        else:
            self._capacity.received(poll.reservation, messages)

    def _fail(self, poll: Poll, error: SQSError) -> None:
        if poll.attempt and isinstance(error, (UnavailableError, UnrecognizedResponseError)):
            with self.lock:
                self._attempts.unanswered(poll.attempt)
        deleted = self.stopping and isinstance(error, QueueDoesNotExistError)  # by its last consumer
        if not (poll.overdue or deleted):  # an overdue poll has counted as a failure, and that may be over
            self._count_failure(error)

    def _count_failure(self, error: SQSError) -> None:
        with self.lock:
            self.failures += 1
            is_new = (
                self._queue.origin == "created" and not self.answered and self.failures <= NEW_QUEUE_FAILURES
            )
        if not (is_new and isinstance(error, QueueDoesNotExistError)):
            self._outage.failure(error)

    def _succeed(self, poll: Poll, message_ids: Sequence[str]) -> None:
        now = self._clock.monotonic()
        with self.lock:
            probe = self.failures > 0 and poll.wait < self._wait
            self.failures = 0
            self.answered = True
            if poll.helper and self._queue.fifo:  # it may find nothing because groups wait for what runs here
                self._schedule.arrived(message_ids)
            elif message_ids or not probe:  # a long poll follows the probe, and does not miss messages
                took = now - poll.started if poll.wait or not self._wait else math.inf
                self._schedule.polled(now, message_ids, took=took)
        self._outage.success(poll.started)
        if has_listener(ReceiveEnded):
            emit(ReceiveEnded(self._queue.name, poll.reservation.messages, len(message_ids)))
