"""Polling of queues: one thread each, the poller; helpers while a queue's batches come back full.

A poll may hang: its connection died silently, or the network swallows everything for a while. To cut it off
early would be wrong, since at SQS it may still take messages, and nobody gets them. So another thread becomes
the poller, until that one hangs as well, and so on, until there is an answer.
"""

from __future__ import annotations

import enum
import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.aws.error_codes import reworded
from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity, Reservation
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import HUNG_AFTER_SECONDS
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import (
    AnswerLostError,
    QueueDoesNotExistError,
    SQSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.events import emit, log_safely
from celery_sqs_visibility.measurements import ReceiveEnded
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.health import PollingFacts
from celery_sqs_visibility.policy.polling import Attempt, Attempts, PollSchedule
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: Threads that poll a queue while its batches come back full.
MAX_PARALLEL_POLLS: Final = 12

#: Threads of a queue, those that hang included. More do not help once this many are stuck.
MAX_THREADS: Final = 20

#: SQS may answer with fewer messages than it has. From a poll that was answered at once, without waiting for
#: messages to arrive, this many count as a full batch.
NEARLY_FULL_BATCH: Final = 5
ANSWERED_AT_ONCE_SECONDS: Final = 0.5

#: A FIFO queue is asked for one message at a time, so every message may be one of many. A helper that finds
#: none shows that there are few groups; the next helper is not tried before this time has passed.
HELPER_PAUSE_SECONDS: Final = 1.0

#: Of a queue that was there: an SQS for development has been restarted, or somebody has deleted it.
DELETED: Final = (
    "it was deleted, or its server has forgotten it: `celery -A ... sqs queues create` makes it anew with "
    "its dead-letter queue, and the worker receives from it without a restart"
)

#: A poll that SQS refuses is refused within this time, and does not wait for messages.
REFUSED_WITHIN_SECONDS: Final = 2.0

#: After so many polls that were cut off while they waited, the log says so: one may be SQS's own restart.
CUTS_OF_A_HABIT: Final = 3

CUT: Final = (
    "polls of queue %r are cut off while they wait for messages (%s so far, the latest after %.0f s): "
    "something between this worker and SQS closes idle connections. Messages are received, with more "
    "requests: set wait_time_seconds to less than that"
)

#: Polls of a queue that this process has made which SQS may refuse: all of it knows a queue after a second.
NEW_QUEUE_FAILURES: Final = 2

#: How late the answer to a poll may be before it counts as lost.
SHORTEST_REPLY_GRACE_SECONDS: Final = 1.5
LONGEST_REPLY_GRACE_SECONDS: Final = 2.5

#: Takes the messages of a poll, with the monotonic instants before and after the call.
Arrived = Callable[[Queue, Sequence[ReceivedMessage], float, float], None]

#: Takes a kombu payload and its delivery, on the main thread.
OnMessage = Callable[[dict[str, Any], Delivery], object]

#: An instant that has passed: do not wait.
NO_WAIT: Final = -math.inf


@dataclass(frozen=True, slots=True)
class Pause:
    """From an instant to another, both monotonic; without end it is until infinity."""

    began: float
    until: float


class Pauses:
    """Paused queues, by Celery's names. One for a process: a pause outlasts a connection.

    Any thread, without a lock: each method reads or writes the table once. A pause whose time is over counts
    as none.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._pauses: dict[str, Pause] = {}

    def pause(self, queue: str, seconds: float = math.inf) -> None:
        """Pause the queue from now on, for `seconds`, in place of the pause that it has."""
        now = self._clock.monotonic()
        self._pauses[queue] = Pause(now, now + seconds)

    def resume(self, queue: str) -> None:
        """End the queue's pause, if it has one."""
        self._pauses.pop(queue, None)

    def get(self, queue: str) -> Pause | None:
        """The queue's pause, if it has one now."""
        pause = self._pauses.get(queue)  # each poll asks
        return pause if pause is not None and self._clock.monotonic() < pause.until else None

    def seconds_left(self, queue: str) -> float:
        """How long its pause still lasts; 0 without one."""
        pause = self.get(queue)
        return 0.0 if pause is None else max(0.0, pause.until - self._clock.monotonic())


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


class Receiver:
    """The polling of one queue, once, from `start` to `stop`. No error ends it. Safe to use from any thread.

    Args:
        queue: the queue.
        capacity: shared with the other queues.
        schedule: when to poll; the receiver guards it, so others go through `expect`.
        wait: seconds of a long poll.
        options: what to ask of every receive.
        clock: the monotonic clock.
        arrived: takes the messages, on a polling thread, also after `stop`; none while some are hidden that
            will come back.
        lock: the pump's, which guards the capacity, too.
        stopped: called on the poller's thread when it ends, its last poll being over.
        pauses: the queues that are not polled for now; call `wake` after a change.
        after_poll: called after `arrived`, when what came is held.

    Attributes:
        stopping: whether `stop` was called.
        in_flight: polls under way; those whose messages are being taken, too.
        failures: polls that failed in a row.
    """

    def __init__(
        self,
        queue: Queue,
        capacity: Capacity,
        schedule: PollSchedule,
        wait: int,
        options: ReceiveOptions,
        clock: Clock,
        arrived: Arrived,
        lock: threading.Lock,
        stopped: Callable[[Queue], None] = lambda _queue: None,
        pauses: Pauses | None = None,
        after_poll: Callable[[Queue, float], None] = lambda _queue, _now: None,
    ) -> None:
        self.queue = queue
        self._capacity = capacity
        self._schedule = schedule
        self._wait = wait
        self._options = options
        self._clock = clock
        self._arrived = arrived
        self._stopped = stopped
        self._after_poll = after_poll
        self._pauses = pauses or Pauses(clock)
        self._outage = Outage(logger, "receive from SQS", queue.name, clock)
        self._lock = lock  # guards everything below, and the schedule
        self._changed = threading.Condition(self._lock)
        self._attempts = Attempts(options.visibility_timeout)
        self.in_flight: list[Poll] = []
        self.failures = 0
        self._answered = False  # whether a poll has ever succeeded
        self._cut = 0  # polls that were cut off while SQS let them wait
        self._started = False
        self.stopping = False
        self._threads: set[threading.Thread] = set()
        self._poller: threading.Thread | None = None  # the other threads help, or hang
        self._refused = False  # whether a thread could not be started, which is to be logged
        self._no_helper_before = -math.inf
        self._moves_by = math.inf  # the instant by which the poller goes on; not known while capacity lacks

    @property
    def paused(self) -> bool:
        """Whether no poll is to begin for now."""
        return self._pauses.get(self.queue.name) is not None

    @property
    def halted(self) -> bool:
        """Whether no poll is to begin, for now or ever."""
        return self.stopping or self.paused

    def start(self) -> None:
        """Start polling; harmless if it polls."""
        with self._lock:
            if self._started or self.stopping:
                return
            self._started = True
            self._capacity.add_queue(self.queue.name)
            self._start_poller()
        self._log_refused()

    def stop(self) -> None:
        """Poll no more. Does not wait for polls in flight; their messages still arrive."""
        with self._lock:
            if self.stopping:
                return
            self.stopping = True
            self._changed.notify_all()
            if self._started:
                self._capacity.remove_queue(self.queue.name)
            self._capacity.forget_polls(self.queue.name)

    def wake(self) -> None:
        """The queue was paused, or resumed. Polls in flight go on, as after `stop`."""
        with self._lock:
            self._changed.notify_all()

    def wait_for_polls(self, until: float) -> bool:
        """After `stop` or a pause: wait for polls in flight until that instant; whether all are over."""
        with self._lock:
            return self._changed.wait_for(
                lambda: not self.in_flight, max(0.0, until - self._clock.monotonic())
            )

    def expect(self, message_id: str, at: float) -> None:
        """A message of this queue becomes visible at that monotonic instant."""
        with self._lock:
            if self._schedule.expect(message_id, at):
                self._changed.notify_all()

    def facts(self, now: float) -> PollingFacts:
        """The polling's state at that monotonic instant. Any thread."""
        late, error = max(0.0, now - self._moves_by), str(self._outage.error or "")
        # SQS has accepted a poll that it lets wait for messages.
        waiting = (poll for poll in list(self.in_flight) if not poll.overdue)
        accepted = self._answered or any(now - poll.started >= REFUSED_WITHIN_SECONDS for poll in waiting)
        return PollingFacts(self.queue.name, late, accepted, error, self.paused, self.hidden(now))

    def hidden(self, now: float) -> int:
        """See `PollSchedule`. Any thread, also where another has the lock for good."""
        return self._schedule.hidden(now)

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Supervised`. A replaced thread's messages are taken all the same."""
        self._expect_what_is_due(now)
        if not self._started or self.stopping:
            return
        unanswered = self.give_up_overdue(now)
        with self._lock:
            trouble = None if self.stopping else self._trouble_of_poller()
            if trouble is None:
                return
            self._start_poller()
        self._log_refused()
        if not unanswered:  # else the outage is logged
            logger.error("a thread that polls %r %s: another takes its place", self.queue.name, trouble)

    def poll(self, reservation: Reservation, *, wait: int, helper: bool = False) -> int:
        """Make one request, and note its result; the number of messages. A polling thread."""
        poll = None
        try:
            poll = self._begin(reservation, wait, helper=helper)
            return 0 if poll is None else self._receive(poll)
        finally:
            with self._lock:
                if poll is not None:
                    self.in_flight.remove(poll)
                    self._changed.notify_all()
                self._capacity.taken(reservation, self._clock.monotonic())

    def _receive(self, poll: Poll) -> int:
        messages: list[ReceivedMessage] = []
        try:
            options = replace(self._options, attempt_id=poll.attempt.id) if poll.attempt else self._options
            asked = poll.reservation.messages
            messages = self.queue.sqs.receive(self.queue.url, asked, poll.wait, options)
        except SQSError as error:
            self._fail(poll, error)
        else:
            self._succeed(poll, asked, [message["MessageId"] for message in messages])
        finally:
            self._note_answer(poll, len(messages))
            now = self._clock.monotonic()
            if messages or self.hidden(now):
                self._arrived(self.queue, messages, poll.started, now)
                with self._lock:
                    self._capacity.taken(poll.reservation, now)
                self._after_poll(self.queue, now)
        return len(messages)

    def give_up_overdue(self, now: float) -> int:
        """Give back the capacity of polls whose answer is late; their number. The supervisor's thread."""
        if all(poll.overdue_at > now for poll in self.in_flight.copy()):  # as nearly always
            return 0
        with self._lock:
            overdue = [poll for poll in self.in_flight if poll.overdue_at <= now and not poll.overdue]
            for poll in overdue:
                poll.state = OVERDUE[poll.state]
            unanswered = [poll for poll in overdue if poll.state is PollState.UNANSWERED]
            for poll in unanswered:
                self._capacity.answered(poll.reservation, 0, now)
        if unanswered:
            self._count_failure(UnavailableError("ReceiveMessage gets no answer", action="ReceiveMessage"))
            self.queue.sqs.discard_idle_connections()
        return len(unanswered)

    def _trouble_of_poller(self) -> str | None:
        """The reason why another thread is to take its place, if there is one. Under the lock."""
        if self._poller is None or not self._poller.is_alive():
            return "died"
        if len(self._threads) >= MAX_THREADS:
            return None
        # Overdue since whenever: there may have been too many threads at first.
        hangs = any(poll.overdue and poll.thread is self._poller for poll in self.in_flight)
        return "hangs" if hangs else None

    def _start_poller(self) -> None:
        self._poller = self._start_thread(self._poll_until_stopped)
        if self._poller is None:
            self._moves_by = min(self._moves_by, self._clock.monotonic())

    def _add_helper(self) -> None:
        with self._lock:
            if not self.stopping and len(self._threads) < MAX_PARALLEL_POLLS:
                self._start_thread(self._help)
        self._log_refused()

    def _start_thread(self, target: Callable[[], None]) -> threading.Thread | None:
        """Under the lock; call `_log_refused` without it."""
        thread = start_thread(partial(self._run, target), f"sqs-receive-{self.queue.name}")
        if thread is None:
            self._refused = True
        else:
            self._threads.add(thread)
        return thread

    def _log_refused(self) -> None:
        if self._refused:
            self._refused = False
            logger.error("a thread that polls %r could not be started", self.queue.name)

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _poll_until_stopped(self) -> None:
        while self._is_poller():
            try:
                self._poll_when_due()
            except Exception:
                logger.exception("unexpected error while polling %r; continuing", self.queue.name)
                self._rest(pause(1))
        if self._poller is threading.current_thread():
            self._stopped(self.queue)

    def _is_poller(self) -> bool:
        with self._lock:
            return not self.stopping and self._poller is threading.current_thread()

    def _poll_when_due(self) -> None:
        self._moves_by = math.inf
        if self._wait_while_paused() or self._sleep():
            return
        self._expect_what_is_due(self._clock.monotonic())
        reservation = self._reserve(waits=True)
        if reservation is None:
            return
        asked = self._clock.monotonic()
        # After a failure: is there an answer again?
        wait = 0 if self.failures else min(self._wait, reservation.wait)
        self._moves_by = asked + wait
        messages = self.poll(reservation, wait=wait)
        if self.failures:
            self._rest(pause(self.failures))
        elif self._is_there_more(messages, self._clock.monotonic() - asked):
            self._add_helper()

    def _help(self) -> None:
        """Poll while there is capacity and batches come back full."""
        more = True
        while more and not self.halted:
            reservation = self._reserve(waits=False)
            if reservation is None:
                return
            more = self._is_there_more(self.poll(reservation, wait=0, helper=True), 0)
        with self._lock:
            self._no_helper_before = self._clock.monotonic() + HELPER_PAUSE_SECONDS

    def _is_there_more(self, messages: int, seconds: float) -> bool:
        """Whether a second poll is likely to bring something, after one with these messages and duration."""
        if self.queue.fifo:
            return messages > 0 and self._clock.monotonic() >= self._no_helper_before
        return messages >= (BATCH_ENTRIES if seconds >= ANSWERED_AT_ONCE_SECONDS else NEARLY_FULL_BATCH)

    def _reserve(self, *, waits: bool) -> Reservation | None:
        """Capacity for a poll; `None` if there is none now, or if the queue is halted meanwhile."""
        with self._lock:
            now, queue = self._clock.monotonic(), self.queue
            waiter = self._capacity.add_waiter(queue.name, now, self._changed.notify_all, fifo=queue.fifo)
            try:
                if waits:
                    self._changed.wait_for(lambda: waiter.reservation is not None or self.halted)
            finally:
                self._capacity.remove_waiter(waiter)
            return waiter.reservation

    def _expect_what_is_due(self, now: float) -> None:
        """Where a message is back and no poll is in flight, the queue waits for no idle queue's turn."""
        if self.in_flight:
            return
        with self._lock:
            due = self._schedule.next_expected()
            if due is None or due > now or self.in_flight or self.halted:
                return
            self._capacity.expect(self.queue.name, now)

    def _wait_while_paused(self) -> bool:
        """Wait for the end of the queue's pause, or for a stop; whether there was a pause.

        A queue that is paused has no share of the capacity. A stop takes the share, too.
        """
        if not self.paused:
            return False
        with self._lock:
            self._capacity.remove_queue(self.queue.name)
            try:
                while self.paused and not self.stopping:
                    seconds = self._pauses.seconds_left(self.queue.name)
                    self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
                self._schedule.poll_now()
            finally:
                self._capacity.add_queue(self.queue.name)
        return True

    def _sleep(self) -> bool:
        """Sleep until the next poll is due, or a stop; whether there was reason to."""
        with self._lock:
            until = self._schedule.next_poll()
            seconds = until - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._moves_by = until
            self._changed.wait_for(lambda: self.halted or self._schedule.next_poll() < until, seconds)
            return True

    def _rest(self, seconds: float) -> None:
        """Send SQS nothing for a while; a stop ends it."""
        with self._lock:
            self._moves_by = self._clock.monotonic() + seconds
            self._changed.wait_for(lambda: self.halted, seconds)

    def _begin(self, reservation: Reservation, wait: int, *, helper: bool) -> Poll | None:
        started = self._clock.monotonic()
        poll = Poll(reservation, wait, started, started + wait + reply_grace(), helper)
        with self._lock:
            if self.halted:  # checked here, or a thread that waits for the polls in flight misses this one
                return None
            self.in_flight.append(poll)
            if self.queue.fifo:
                poll.attempt = self._attempts.begin(started)
            return poll

    def _note_answer(self, poll: Poll, messages: int) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if poll.state is not PollState.UNANSWERED:
                self._capacity.answered(poll.reservation, messages, now)
            poll.state = PollState.ANSWERED
            poll.overdue_at = now + HUNG_AFTER_SECONDS

    def _fail(self, poll: Poll, error: SQSError) -> None:
        if poll.attempt and isinstance(error, (UnavailableError, UnrecognizedResponseError)):
            with self._lock:
                self._attempts.unanswered(poll.attempt)
        deleted = self.stopping and isinstance(error, QueueDoesNotExistError)  # by its last consumer
        took = self._clock.monotonic() - poll.started
        if isinstance(error, AnswerLostError) and REFUSED_WITHIN_SECONDS <= took < poll.wait:
            self._note_cut(took)
        elif not (poll.overdue or deleted):  # an overdue poll has counted as a failure, and that may be over
            self._count_failure(error)

    def _note_cut(self, took: float) -> None:
        """SQS had accepted the poll, and let it wait: it is no outage that the connection was closed."""
        with self._lock:
            self.failures += 1
            self._cut += 1
            is_habit = self._cut == CUTS_OF_A_HABIT
        if is_habit:
            log_safely(logger.warning, CUT, self.queue.name, self._cut, took)

    def _count_failure(self, error: SQSError) -> None:
        with self._lock:
            self.failures += 1
            is_new = (
                self.queue.origin == "created" and not self._answered and self.failures <= NEW_QUEUE_FAILURES
            )
        if not isinstance(error, QueueDoesNotExistError):
            self._outage.failure(error)
        elif not is_new:
            self._outage.failure(reworded(error, f"{str(error).rstrip('.')}; {DELETED}"))

    def _succeed(self, poll: Poll, asked: int, message_ids: Sequence[str]) -> None:
        now = self._clock.monotonic()
        with self._lock:
            probe = self.failures > 0 and poll.wait < self._wait
            self.failures = 0
            self._answered = True
            if poll.helper and self.queue.fifo:  # it may find nothing because groups wait for runs here
                self._schedule.arrived(message_ids)
            elif message_ids or not probe:  # a long poll follows the probe, and does not miss messages
                took = now - poll.started if poll.wait or not self._wait else math.inf
                self._schedule.polled(now, message_ids, took=took)
                # A helper's poll, or a late one, may have shown a sleeping thread that the queue is busy.
                self._changed.notify_all()
        if self._outage.error is not None:
            self._outage.success(poll.started)
        if ReceiveEnded.is_wanted():
            emit(ReceiveEnded(self.queue.name, asked, len(message_ids)))


class Receivers:
    """Receivers by queue name, with the callbacks for their messages.

    The main thread adds them, each in one step; any thread reads.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[Receiver, OnMessage]] = {}
        self._replaced: list[Receiver] = []  # stopped ones
        self._all: tuple[Receiver, ...] = ()

    def add(self, receiver: Receiver, on_message: OnMessage) -> None:
        """Put this receiver in the place of its queue's latest one, which was stopped."""
        name = receiver.queue.name
        replaced = [*self._replaced, self.get(name)]
        self._replaced = [each for each in replaced if each and not each.wait_for_polls(NO_WAIT)]
        self._latest[name] = receiver, on_message
        self._all = *self._replaced, *(latest for latest, _ in self._latest.values())

    def get(self, queue_name: str) -> Receiver | None:
        """The queue's latest receiver, which may be stopped."""
        receiver, _ = self._latest.get(queue_name, (None, None))
        return receiver

    def expect(self, queue_name: str, message_id: str, at: float) -> None:
        """A message of the queue becomes visible at that monotonic instant."""
        if (receiver := self.get(queue_name)) is not None:
            receiver.expect(message_id, at)

    def on_message(self, queue_name: str) -> OnMessage | None:
        """The queue's callback; `None` while the queue is paused, or if it is not consumed any more."""
        receiver, on_message = self._latest.get(queue_name, (None, None))
        return None if receiver is None or receiver.halted else on_message

    def all(self) -> tuple[Receiver, ...]:
        """The latest receivers and the replaced ones."""
        return self._all

    def consumed(self) -> list[str]:
        """The names of the queues that are polled, but for pauses."""
        return [name for name, (receiver, _) in list(self._latest.items()) if not receiver.stopping]

    def polled(self) -> set[str]:
        """The names of stopped or paused queues whose polls are in flight."""
        return {each.queue.name for each in self.all() if not each.wait_for_polls(NO_WAIT)}

    def wait_for_polls(self, until: float, queue_name: str | None = None) -> bool:
        """After all, or that queue, were stopped or paused: wait for polls in flight; whether all ended.

        `until` is a monotonic instant.
        """
        wanted = [each for each in self.all() if queue_name in {None, each.queue.name}]
        return all(receiver.wait_for_polls(until) for receiver in wanted)


def reply_grace() -> float:
    """Seconds by which an answer may be late before a second poll is made, with jitter."""
    return random.uniform(SHORTEST_REPLY_GRACE_SECONDS, LONGEST_REPLY_GRACE_SECONDS)  # noqa: S311
