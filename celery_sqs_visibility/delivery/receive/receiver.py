"""Polls one queue: one thread while it is quiet, more while its batches come back full.

A poll may hang: its connection died silently, or the network swallows everything for a while. To cut it
off early would be wrong, since at SQS it may take messages. So the thread that hangs is relieved: another
polls in its place until that one hangs, too, and so on, until there is an answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity, Reservation
from celery_sqs_visibility.delivery.receive.receive_attempts import Attempt, Attempts
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS
from celery_sqs_visibility.errors import (
    QueueDoesNotExistError,
    SQSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.backoff import pause, reply_grace
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.polling import PollSchedule
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: Threads that poll a queue while its batches come back full.
MAX_PARALLEL = 12

#: SQS may answer with fewer messages than it has. So many are as good as full, of a poll that did not wait
#: for them: one that was answered within so many seconds.
AS_GOOD_AS_FULL = 5
AT_ONCE = 0.5

#: Threads of a queue, those that hang included: what keeps so many from returning, more of them do not cure.
MOST_THREADS = 20

#: A FIFO queue is asked for one message a receive, so each that comes may be one of many. Where a second poll
#: finds none the first is alone for so many seconds: of few groups there is nothing more to be had.
NO_HELP_SECONDS = 1.0

#: Takes what a poll brought: the messages, the monotonic instants before and after the call.
Arrived = Callable[[Queue, Sequence[ReceivedMessage], float, float], None]


@dataclass(slots=True, eq=False)
class Poll:
    """A request under way.

    Attributes:
        thread: whose.
        reservation: the room for its messages.
        wait: seconds that SQS may wait for a message.
        started: the monotonic instant at which it was made.
        overdue: the monotonic instant after which its thread is relieved.
        beside: whether it was made beside a long poll, for what comes back meanwhile.
        helps: whether it was made by one of the threads that help while batches come back full.
        attempt: under which id, in a FIFO queue.
        given_up: whether that came to pass; the reservation of a call under way is given back then.
        answered: whether the call has returned, in whatever way.
    """

    thread: threading.Thread
    reservation: Reservation
    wait: int
    started: float
    overdue: float
    beside: bool = False
    helps: bool = False
    attempt: Attempt | None = None
    given_up: bool = False
    answered: bool = False


class Receiver:
    """The polling of one queue, once, from `start` to `stop`. No error ends it.

    Args:
        queue: what to poll.
        room: the reservation it shares with the other queues.
        schedule: when to poll; guarded by the receiver's lock, so others go through `expect`.
        wait: seconds of a long poll.
        options: what to ask of every receive.
        clock: for the schedule.
        arrived: takes the messages; called from the polling thread, also after `stop`.
        stopped: called from the polling thread when it ends, its last poll being over.
    """

    def __init__(
        self,
        queue: Queue,
        capacity: ReceiveCapacity,
        schedule: PollSchedule,
        wait: int,
        options: ReceiveOptions,
        clock: Clock,
        arrived: Arrived,
        stopped: Callable[[Queue], None] = lambda _queue: None,
    ) -> None:
        self.queue = queue
        self._capacity = capacity
        self._schedule = schedule
        self._wait = wait
        self._options = options
        self._clock = clock
        self._arrived = arrived
        self._stopped = stopped
        self._outage = Outage(logger, "cannot receive from SQS", "receives from SQS", queue.name, clock)
        self._changed = threading.Condition()  # guards everything below, and the schedule
        self._threads: set[threading.Thread] = set()
        self._poller: threading.Thread | None = None  # the others help, or hang
        self._in_flight: list[Poll] = []
        self._stands_in: threading.Thread | None = None
        self._joined = False
        self._failures = 0
        self._attempts = Attempts(options.visibility_timeout)
        self._no_help_before = -math.inf
        self.stopping = False

    def start(self) -> None:
        """Start polling; harmless if it does."""
        with self._changed:
            if self._joined or self.stopping:
                return
            self._joined = True
            self._capacity.join()
            self._poller = self._spawn(self._poll_on)

    def stop(self) -> None:
        """Poll no more. Does not wait for polls in flight; what they bring still arrives.

        Celery's cold shutdown calls it in a signal handler, on the main thread, which may hold the lock just
        now: it is reentrant, as a Condition's is by default.
        """
        with self._changed:
            if self.stopping:
                return
            self.stopping = True
            self._changed.notify_all()
            joined = self._joined
        if joined:
            self._capacity.leave(self.queue.name)

    def settle_down(self, until: float) -> bool:
        """After `stop`: wait for the polls in flight, until that monotonic instant; whether all returned."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._in_flight, max(0.0, until - self._clock.monotonic())
            )

    def expect(self, message_id: str, at: float) -> None:
        """A message of this queue becomes visible at that monotonic instant. Any thread."""
        with self._changed:
            before = self._schedule.next_poll()
            self._schedule.expect(message_id, at)
            if self._schedule.next_poll() < before:
                self._changed.notify_all()
            self._have_stand_in()

    def poll(self, reservation: Reservation, *, wait: int, beside: bool = False, helps: bool = False) -> int:
        """One request and what follows from it; how many messages it brought. A polling thread."""
        messages: list[ReceivedMessage] = []
        started = self._clock.monotonic()
        overdue = started + wait + reply_grace()
        poll = Poll(threading.current_thread(), reservation, wait, started, overdue, beside, helps)
        if not self._begin(poll):
            self._capacity.received(reservation, 0)
            return 0
        try:
            messages = self.queue.sqs.receive(
                self.queue.url, reservation.messages, wait, self._options_of(poll)
            )
        except SQSError as error:
            self._note_unanswered(poll, error)
            gone = self.stopping and isinstance(error, QueueDoesNotExistError)  # its last consumer deleted it
            if not (poll.given_up or gone):  # given up, it was told, and may be over
                self._failed(error)
        else:
            more = len(messages) == reservation.messages
            self._recovered(poll, [message["MessageId"] for message in messages], more=more)
        finally:
            self._take_room(poll, len(messages))
            try:
                if messages:
                    self._arrived(self.queue, messages, started, self._clock.monotonic())
            finally:
                with self._changed:
                    self._in_flight.remove(poll)
                    self._changed.notify_all()
        return len(messages)

    def _begin(self, poll: Poll) -> bool:
        """Whether the poll may be made."""
        with self._changed:
            if self.stopping:  # now, or who waits for the polls in flight would miss this one
                return False
            self._in_flight.append(poll)
            if self.queue.fifo:
                poll.attempt = self._attempts.begin(poll.started)
            self._have_stand_in()
            return True

    def _options_of(self, poll: Poll) -> ReceiveOptions:
        return replace(self._options, attempt_id=poll.attempt.id) if poll.attempt else self._options

    def _note_unanswered(self, poll: Poll, error: SQSError) -> None:
        if poll.attempt and isinstance(error, (UnavailableError, UnrecognizedResponseError)):
            with self._changed:
                self._attempts.unanswered(poll.attempt)

    def _take_room(self, poll: Poll, messages: int) -> None:
        with self._changed:
            poll.answered = True
            given_up, poll.given_up = poll.given_up, False
            poll.overdue = self._clock.monotonic() + HUNG_AFTER_SECONDS  # the rest may hang too
        if given_up:
            self._capacity.unexpected(messages, fifo=self.queue.fifo)
        else:
            self._capacity.received(poll.reservation, messages)

    def _poll_on(self) -> None:
        while self._is_poller():
            try:
                self._turn()
            except Exception:
                logger.exception("receiving stumbled and goes on", extra={"queue": self.queue.name})
                self._rest(pause(1))
        if self._poller is threading.current_thread():
            self._stopped(self.queue)

    def _is_poller(self) -> bool:
        with self._changed:
            return not self.stopping and self._poller is threading.current_thread()

    def replace_stuck(self, now: float) -> None:
        """See `supervisor.Ward.look_after`. What a relieved thread brings is taken all the same."""
        self._tell_room_what_is_due(now)
        with self._changed:
            if self._poller is None or self.stopping:
                return
            overdue = [poll for poll in self._in_flight if poll.overdue <= now and not poll.given_up]
            unanswered = [poll for poll in overdue if not poll.answered]
            for poll in overdue:
                poll.given_up = True
            died = not self._poller.is_alive()
            # Not only what is overdue just now: there may have been too many threads when it was.
            hangs = any(poll.given_up and poll.thread is self._poller for poll in self._in_flight)
            relieved = died or (hangs and len(self._threads) < MOST_THREADS)
        for poll in unanswered:
            self._capacity.received(poll.reservation, 0)
        if unanswered:
            self._failed(UnavailableError("ReceiveMessage gets no answer", action="ReceiveMessage"))
            self.queue.sqs.discard_idle_connections()
        elif relieved:
            what = "died" if died else "hangs"
            logger.error("a thread that polls %r %s: another takes its place", self.queue.name, what)
        with self._changed:
            if relieved and not self.stopping:
                self._poller = self._spawn(self._poll_on)

    def _turn(self) -> None:
        if self._sleep():
            return
        self._tell_room_what_is_due(self._clock.monotonic())
        reservation = self._reserve(None)
        if reservation is None:
            return
        asked = self._clock.monotonic()
        brought = self.poll(reservation, wait=self._wait_of(reservation))
        if self._failures:
            self._rest(pause(self._failures))
        elif self._is_there_more(brought, self._clock.monotonic() - asked):
            self._add_poller()

    def _reserve(self, timeout: float | None) -> Reservation | None:
        return self._capacity.reserve(self.queue.name, timeout, lambda: self.stopping, fifo=self.queue.fifo)

    def _tell_room_what_is_due(self, now: float) -> None:
        """Where a message is back and no poll would bring it, the queue's next poll is no idle queue's."""
        with self._changed:
            due = self._schedule.next_expected()
            if due is None or due > now or self._in_flight or self.stopping:
                return
        self._capacity.expect(self.queue.name)

    def _is_there_more(self, brought: int, seconds: float) -> bool:
        """Whether a second poll would bring something, after one that brought so many in so many seconds."""
        if self.queue.fifo:
            return brought > 0 and self._clock.monotonic() >= self._no_help_before
        return brought >= (BATCH_ENTRIES if seconds >= AT_ONCE else AS_GOOD_AS_FULL)

    def _wait_of(self, reservation: Reservation) -> int:
        """Seconds that a poll should wait: after a failure none, to know soon whether there is an answer."""
        with self._changed:
            if self._failures or self._schedule.is_imminent(self._clock.monotonic()):
                return 0
        return min(self._wait, reservation.wait)

    def _add_poller(self) -> None:
        with self._changed:
            if not self.stopping and len(self._threads) < MAX_PARALLEL:
                self._spawn(self._help)

    def _help(self) -> None:
        """Poll while there is room and batches come back full."""
        more = True
        while more and not self.stopping:
            reservation = self._reserve(0)
            if reservation is None:
                return
            more = self._is_there_more(self.poll(reservation, wait=0, helps=True), 0)
        with self._changed:
            self._no_help_before = self._clock.monotonic() + NO_HELP_SECONDS

    def _have_stand_in(self) -> None:
        """While a long poll waits and something is expected. Under the lock."""
        if self._stands_in is None and self._long_poll_waits() and self._schedule.next_expected() is not None:
            thread = self._spawn(self._stand_in)
            self._stands_in = thread if thread.is_alive() else None

    def _long_poll_waits(self) -> bool:
        return not self.stopping and any(poll.wait and not poll.answered for poll in self._in_flight)

    def _stand_in(self) -> None:
        """Ask for what comes back while a long poll waits: some servers look again only now and then.

        Where the long poll has taken all the room, it has to bring it.
        """
        while self._wait_beside_long_poll():
            reservation = self._reserve(0)
            if reservation is None:
                break
            self.poll(reservation, wait=0, beside=True)

    def _wait_beside_long_poll(self) -> bool:
        """Wait until something is due that the long poll has not brought; `False` if nothing will be."""
        with self._changed:
            while self._long_poll_waits() and not self._failures:
                due = self._schedule.next_expected()
                if due is None:
                    break
                now = self._clock.monotonic()
                if due <= now:
                    return True
                self._changed.wait(due - now)
            self._stands_in = None  # under the lock: what is expected from now on has another
            return False

    def _spawn(self, target: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            finally:
                with self._changed:
                    self._threads.discard(threading.current_thread())
                    if self._stands_in is threading.current_thread():
                        self._stands_in = None

        thread = threading.Thread(target=run, name=f"sqs-receive-{self.queue.name}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads just now, or the interpreter is ending
            self._threads.discard(thread)
            logger.exception("a thread that polls %r could not be started", self.queue.name)
        return thread

    def _sleep(self) -> bool:
        """Sleep as the schedule says, until it or a stop says otherwise; whether there was reason to."""
        with self._changed:
            until = self._schedule.next_poll()
            seconds = until - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._changed.wait_for(lambda: self.stopping or self._schedule.next_poll() < until, seconds)
            return True

    def _rest(self, seconds: float) -> None:
        """Leave SQS alone for a while; a stop ends it."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, seconds)

    def _failed(self, error: SQSError) -> None:
        with self._changed:
            self._failures += 1
        self._outage.failed(error)

    def _recovered(self, poll: Poll, message_ids: Sequence[str], *, more: bool) -> None:
        now = self._clock.monotonic()
        with self._changed:
            glanced = self._failures > 0 and poll.wait < self._wait
            self._failures = 0
            if poll.beside:
                self._schedule.glanced(now, message_ids)
            elif poll.helps and self.queue.fifo:  # where it finds none, groups may wait for what runs here
                self._schedule.came(message_ids)
            elif message_ids or not glanced:  # else a poll that looks everywhere, and waits, comes next
                took = now - poll.started if poll.wait or not self._wait else math.inf
                self._schedule.polled(now, message_ids, more=more, took=took)
        self._outage.worked(poll.started)
