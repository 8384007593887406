"""Receivers, which poll queues on the pump's threads."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.port import BatchResult, ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.core.polls import MAX_POLLS, Failure, Poll, Polling, PollState, QueuePolls
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError, UnavailableError
from celery_sqs_visibility.events import ReceiveEnded, emit, log_safely
from celery_sqs_visibility.policy.health import PollingFacts
from celery_sqs_visibility.policy.options import QueueOptions

logger = logging.getLogger(__name__)

#: Advice for a queue that existed before: somebody deleted it, or a development server was restarted.
DELETED: Final = (
    "it was deleted, or its server has forgotten it: `celery -A ... sqs queues create` makes it anew with "
    "its dead-letter queue, and the worker receives from it without a restart"
)

#: Polls cut off while they wait are logged from this number on: a single one may be a restart of SQS.
CUTS_OF_A_HABIT: Final = 3

CUT: Final = (
    "polls of queue %r are cut off while they wait for messages (%s so far, the latest after %.0f s): "
    "something between this worker and SQS closes idle connections. Messages are received, with more "
    "requests: set wait_time_seconds to less than that"
)

#: Takes the messages of a poll, and the monotonic instants before and after its request.
Arrived = Callable[[Queue, Sequence[ReceivedMessage], float, float], None]

#: Takes a kombu payload and its delivery, on the main thread.
OnMessage = Callable[[dict[str, Any], Delivery], object]


class Receiver:
    """Polls one queue from `start` to `stop`, which end it for good. Errors are logged. Any thread.

    Args:
        queue: the queue.
        capacity: shared with the other queues; the pump's lock guards it.
        options: of the queue.
        receive: the parameters of every receive request, except for the visibility timeout.
        arrived: takes the messages, on a thread of the pump, also after `stop`. While hidden messages are due
            to come back it is also called without messages.
        pump: its threads poll.
        stopped: called after `stop`, once no poll is in flight except those that hang.
        pauses: of the queues; call `wake` after a change.
        reads_tag: whether to read the queue's tag, which may store a pause, before the first poll.
        after_poll: called after `arrived`, when the messages are held.
    """

    def __init__(
        self,
        queue: Queue,
        capacity: Capacity,
        options: QueueOptions,
        receive: ReceiveOptions,
        arrived: Arrived,
        pump: Pump,
        stopped: Callable[[Queue], None] = lambda _queue: None,
        pauses: Pauses | None = None,
        after_poll: Callable[[Queue, float], None] = lambda _queue, _now: None,
        *,
        reads_tag: bool = False,
    ) -> None:
        self.queue = queue
        self._options = replace(receive, visibility_timeout=options.visibility_timeout)
        self._now = pump.now
        self._arrived = arrived
        self._stopped = stopped
        self._after_poll = after_poll
        self._pauses = pauses or Pauses(pump.clock)
        self._reads_tag = reads_tag
        self._outage = Outage(logger, "receive from SQS", queue.name, pump.clock)
        self.lane: Lane[tuple[Poll]] = pump.lane(f"polls {queue.name!r}", MAX_POLLS, self, math.inf)
        self._lock: threading.Lock = pump.lock
        self._polls = QueuePolls(queue, capacity, options, self._served)  # guarded by the lock

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._polls.state is Polling.STOPPED

    @property
    def halted(self) -> bool:
        """Whether no poll may begin: the receiver is stopped, or its queue is paused."""
        return self.stopping or self._pauses.get(self.queue.name) is not None

    @property
    def in_flight(self) -> int:
        """The number of polls in flight, including those whose messages are being taken."""
        return len(self._polls.in_flight)

    def start(self) -> None:
        """Start polling. Idempotent; has no effect after `stop`."""
        with self._lock:
            if self.stopping:
                return
            now = self._now()
            self._polls.start(now)
            self._polls.pause(self._pauses.polls_from(self.queue.name), now)
        self.lane.start()

    def stop(self) -> None:
        """Start no more polls. Does not wait for those in flight, whose messages still arrive."""
        with self._lock:
            self._polls.stop(self._now())
            over = self._polls.is_over
        self.lane.stop()
        if over:
            self._stopped(self.queue)

    def wake(self) -> None:
        """Apply a change of the queue's pause or rest. Polls in flight go on, as after `stop`."""
        with self._lock:
            self._polls.pause(self._pauses.polls_from(self.queue.name), self._now())
            self.lane.wake()

    def wait_for_polls(self, until: float) -> bool:
        """Wait until that instant for polls in flight, after a stop or pause. Returns whether all ended."""
        with self._lock:
            if not self._polls.in_flight:
                return True
            seconds = max(0.0, until - self._now())
            return self.lane.wait_until(lambda: not self._polls.in_flight, seconds)

    def expect(self, message_id: str, at: float) -> None:
        """Expect a message of this queue to become visible at that monotonic instant."""
        with self._lock:
            if self._polls.expect(message_id, at):
                self.lane.wake()

    def facts(self, now: float) -> PollingFacts:
        """The state of the polling at that monotonic instant. Any thread."""
        polls, paused = self._polls, self._pauses.get(self.queue.name) is not None
        error = str(self._outage.error or "")
        return PollingFacts(
            self.queue.name, polls.late(now), polls.accepted(now), error, paused, self.hidden(now)
        )

    def hidden(self, now: float) -> int:
        """The number of hidden messages that will come back. Any thread; takes no lock."""
        return self._polls.schedule.hidden(now)

    def replace_stuck(self, now: float) -> None:
        """Replace overdue polls. The supervisor's thread."""
        if self._polls.waits_in_time(now):  # the usual case
            return
        with self._lock:
            self._polls.look(now, [poll for job in self.lane.in_progress() for poll in job.batch])
            late = self._polls.note_late(now)
            self.lane.wake()  # in case a wake-up was lost
        if any(poll.state is PollState.UNANSWERED for poll in late):
            self._outage.failure(UnavailableError("ReceiveMessage gets no answer", action="ReceiveMessage"))
            self.queue.sqs.discard_idle_connections()
        elif late:
            logger.error("a thread that %s hangs; another takes its place", self.lane.duty)

    def _served(self) -> None:
        """Make a thread poll, because there is capacity now. Under the lock."""
        now = self._now()
        self.lane.wake_for(now, now)

    def due(self, now: float) -> float | None:
        return self._polls.due(now)

    def ready(self) -> int:
        return self._polls.ready()

    def take(self, now: float) -> tuple[Poll] | None:
        poll = self._polls.take(now)
        return None if poll is None else (poll,)

    def send(self, batch: tuple[Poll], _since: float) -> BatchResult:
        """Make the poll. Messages that arrived are taken even if something fails."""
        (poll,) = batch
        options = replace(self._options, attempt_id=poll.attempt.id) if poll.attempt else self._options
        messages: list[ReceivedMessage] = []
        try:
            if self._reads_tag:
                self._read_tag()
                return BatchResult({})  # so that the next poll has its full time
            messages = self.queue.sqs.receive(self.queue.url, poll.reservation.messages, poll.wait, options)
        except SQSError as error:
            self._fail(poll, error)
        else:
            self._succeed(poll, messages)
        finally:
            now = self._now()
            if messages or self.hidden(now):
                self._arrived(self.queue, messages, poll.started, now)
                with self._lock:
                    self._polls.taken(poll, now)
                self._after_poll(self.queue, now)
        return BatchResult({})

    def _read_tag(self) -> None:
        """Read the tag in place of the first poll, on its thread, so that the worker's start does not wait.

        Raises:
            SQSError: SQS does not answer now. The poll fails, and the next one asks again.
        """
        self._pauses.read_tag(self.queue, self._polls.failures)
        self._reads_tag = False
        self.wake()

    def conclude(self, batch: tuple[Poll], _since: float, failed: Mapping[int, SQSError]) -> None:
        """End the poll. Its thread may have died or met a bug."""
        with self._lock:
            if failed:
                self._polls.failures += 1
            self._polls.ended(*batch, self._now())
            over = self._polls.is_over
        if over:
            self._stopped(self.queue)

    def _succeed(self, poll: Poll, messages: Sequence[ReceivedMessage]) -> None:
        asked = poll.reservation.messages
        message_ids = [message["MessageId"] for message in messages]
        with self._lock:
            self._polls.succeeded(poll, message_ids, self._now())
        if self._outage.under_way:
            self._outage.success(poll.started)
        if ReceiveEnded.is_wanted():
            emit(ReceiveEnded(self.queue.name, asked, len(messages)))

    def _fail(self, poll: Poll, error: SQSError) -> None:
        now = self._now()
        with self._lock:
            failure = self._polls.failed(poll, error, now)
        if failure is Failure.CUT and self._polls.cuts == CUTS_OF_A_HABIT:
            log_safely(logger.warning, CUT, self.queue.name, self._polls.cuts, now - poll.started)
        elif failure is Failure.OUTAGE and isinstance(error, QueueDoesNotExistError):
            self._outage.failure(reword(error, f"{str(error).rstrip('.')}; {DELETED}"))
        elif failure is Failure.OUTAGE:
            self._outage.failure(error)


class Receivers:
    """Receivers by queue name, with the callbacks for their messages.

    The main thread adds receivers, atomically; any thread reads.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[Receiver, OnMessage]] = {}
        self._replaced: list[Receiver] = []  # stopped, with polls in flight
        self._all: tuple[Receiver, ...] = ()

    def add(self, receiver: Receiver, on_message: OnMessage) -> None:
        """Add a receiver, and stop the one that it replaces, if any."""
        name = receiver.queue.name
        previous = self.get(name)
        self._latest[name] = receiver, on_message
        if previous is not None:
            previous.stop()
            self._replaced.append(previous)
        self._replaced = [each for each in self._replaced if each.in_flight]
        self._all = *self._replaced, *(latest for latest, _ in self._latest.values())

    def get(self, queue_name: str) -> Receiver | None:
        """The latest receiver of the queue, which may be stopped."""
        receiver, _ = self._latest.get(queue_name, (None, None))
        return receiver

    def expect(self, queue_name: str, message_id: str, at: float) -> None:
        """Expect a message of the queue to become visible at that monotonic instant."""
        if (receiver := self.get(queue_name)) is not None:
            receiver.expect(message_id, at)

    def on_message(self, queue_name: str) -> OnMessage | None:
        """The callback of the queue; `None` if the queue is paused or no longer consumed."""
        receiver, on_message = self._latest.get(queue_name, (None, None))
        return None if receiver is None or receiver.halted else on_message

    def all(self) -> tuple[Receiver, ...]:
        """The latest receivers and the replaced ones."""
        return self._all

    def consumed(self) -> list[str]:
        """The names of the queues that are polled, including paused ones."""
        return [name for name, (receiver, _) in list(self._latest.items()) if not receiver.stopping]

    def polled(self) -> set[str]:
        """The names of the queues that have polls in flight."""
        return {each.queue.name for each in self.all() if each.in_flight}

    def wait_for_polls(self, until: float, queue_name: str | None = None) -> bool:
        """Wait for polls in flight, of one queue or all, after a stop or pause.

        Returns whether all ended before the monotonic instant `until`.
        """
        wanted = [each for each in self.all() if queue_name in {None, each.queue.name}]
        return all(receiver.wait_for_polls(until) for receiver in wanted)
