"""Celery's events on their way to one monitor: sent in batches by a thread, dropped if there are too many.

A receiver accepts an event as a JSON object, or a list of events (celery/events/receiver.py:
`EventReceiver._receive`). So all waiting events share a message, its request and its receive.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import HIDDEN, VISIBLE, Queue, counts
from celery_sqs_visibility.delivery.event_log import Fields
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.pump import Lane, Pump
from celery_sqs_visibility.errors import (
    PASSING_ERRORS,
    AccessDeniedError,
    QueueDoesNotExistError,
    SQSError,
)
from celery_sqs_visibility.events import EventsDropped, emit, log_safely
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

logger = logging.getLogger(__name__)

#: An event waits this long for others. A monitor is that late.
LINGER_SECONDS: Final = 0.5

#: How many bytes of events may wait for one monitor; further events are dropped.
MAX_BYTES: Final = 4 * 1024 * 1024

#: A queue that was first seen so recently may be unknown to some of SQS's servers.
NEW_SECONDS: Final = 5.0

#: The interval of checks. Shorter than the time for which SQS keeps a message in the queue.
LIVENESS_CHECK_SECONDS: Final = 40.0

#: Consecutive checks at which nothing was received, because SQS's counts are approximate.
LIVENESS_CHECKS: Final = 2


class Liveness:
    """Whether the monitor of a queue still receives. Used only by the thread that sends to the queue.

    Received messages are not deleted, but hidden until they expire (`ATTRIBUTES` in `control/queues.py`). So
    if messages wait and none is hidden, nobody has received for a minute.

    Attributes:
        is_silent: whether the monitor has stopped receiving.
    """

    def __init__(self, queue: Queue, clock: Clock) -> None:
        self.is_silent = False
        self._queue = queue
        self._clock = clock
        self._checks = 0  # consecutive checks at which nothing was received
        self._check_at = clock.monotonic() + LIVENESS_CHECK_SECONDS

    def check(self) -> None:
        """Check if a check is due. Makes a request."""
        if self._clock.monotonic() < self._check_at:
            return
        self._check_at = self._clock.monotonic() + LIVENESS_CHECK_SECONDS
        try:
            waiting, received = counts(self._queue, VISIBLE, HIDDEN)
        except AccessDeniedError as error:
            logger.info(
                "cannot tell whether a monitor still listens, and sends events to it until its queue is "
                "deleted: %s",
                error,
            )
            self.is_silent, self._check_at = False, math.inf
        except QueueDoesNotExistError:
            pass  # the next send finds out, and ends the feed
        except SQSError as error:
            logger.debug("cannot tell whether a monitor still listens: %s", error)
        else:
            self._judge(waiting, received)

    def _judge(self, waiting: int, received: int) -> None:
        if not (waiting or received):
            return  # nothing was sent for a minute
        self._checks = 0 if received else self._checks + 1
        was, self.is_silent = self.is_silent, self._checks >= LIVENESS_CHECKS
        if was != self.is_silent:
            does = "receives no more, and gets few" if self.is_silent else "receives again, and gets all"
            logger.info("a monitor %s of Celery's events (queue=%s)", does, self._queue.name)


class EventFeed:
    """Sends events to the queue of one monitor. `submit` may be called by any thread and does not block.

    Args:
        encode: makes the message for SQS.
        gone: called by the thread that sends, when the queue no longer exists, and so its monitor.
        lingers: whether this is a worker: events wait for others, and it checks that they are received.

    Attributes:
        seen_at: the monotonic instant at which the monitor was last known to listen.
    """

    def __init__(
        self,
        queue: Queue,
        encode: Callable[[EventMessage], OutgoingMessage],
        gone: Callable[[EventFeed], None],
        clock: Clock,
        pump: Pump,
        *,
        lingers: bool,
    ) -> None:
        self.queue = queue
        self._encode = encode
        self._gone = gone
        self._clock = clock
        self._lingers = lingers
        self._liveness = Liveness(queue, clock)
        self._outage = Outage(logger, "send events", queue.name, clock)
        self.seen_at = clock.monotonic()
        self.lane: Lane[list[EventMessage]] = pump.lane("sends events to a monitor", 1, self)
        self._lock = self.lane.lock  # guards everything below
        self._waiting: deque[EventMessage] = deque()
        self._bytes = 0  # of waiting messages
        self._sending = False
        self._since = 0.0  # when the first waiting message was added
        self._not_before = 0.0
        self._failures = 0
        self._flushing = False
        self._said = False
        self._ended = False

    def seen(self) -> None:
        """Note that the monitor is listening now."""
        self.seen_at = self._clock.monotonic()

    def submit(self, message: EventMessage) -> None:
        """Send the message soon, or drop it if too much waits."""
        now = self._clock.monotonic()
        with self._lock:
            if self._ended or (self._waiting and self._liveness.is_silent):
                return  # an occasional event shows whether it receives again
            if fits := self._bytes + len(message.body) <= MAX_BYTES:
                if not self._waiting:
                    self._since = now
                self._waiting.append(message)
                self._bytes += len(message.body)
                late = now > self._since + self._linger  # start a thread, if none could start
                if len(self._waiting) == 1 or self._bytes >= BATCH_BYTES or late:
                    self.lane.wake()
        if not fits:
            self._drop(message.events, "too many wait")

    @property
    def _linger(self) -> float:
        if self._liveness.is_silent:
            return LIVENESS_CHECK_SECONDS
        return LINGER_SECONDS if self._lingers else 0.0

    def flush(self, timeout: float) -> bool:
        """Send all waiting events at once. Returns whether all were sent within `timeout` seconds."""
        with self._lock:
            self._flushing = True
            self.lane.wake()
            try:
                return self.lane.wait_until(lambda: not (self._waiting or self._sending), timeout)
            finally:
                self._flushing = False

    def due(self, now: float) -> float | None:
        if not self._waiting:
            return None
        full = self._flushing or self._bytes >= BATCH_BYTES
        return max(self._not_before, now if full else self._since + self._linger)

    def ready(self) -> int:
        """Return 1: one batch at a time, so that events arrive in order."""
        return 1

    def take(self, now: float) -> list[EventMessage] | None:
        due = self.due(now)
        if due is None or due > now:
            return None
        batch = take_batch(self._waiting)
        self._bytes, self._since, self._sending = bytes_of(self._waiting), now, True
        return batch

    def send(self, batch: list[EventMessage], _since: float) -> BatchResult:
        if self._lingers:
            self._liveness.check()
        return self.queue.sqs.send_batch(self.queue.url, [self._encode(each) for each in batch])

    def conclude(self, batch: list[EventMessage], since: float, failed: Mapping[int, SQSError]) -> None:
        """Retry after an error that passes; drop the events after any other."""
        # SQS does not know a queue in its first seconds.
        new = since - self.seen_at < NEW_SECONDS
        passing = (*PASSING_ERRORS, QueueDoesNotExistError) if new else PASSING_ERRORS
        again = [i for i, error in sorted(failed.items()) if isinstance(error, passing)]
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            self._not_before = self._clock.monotonic() + pause(self._failures) if failed else 0.0
            self._waiting.extendleft(batch[i] for i in reversed(again))
            self._bytes, self._sending = bytes_of(self._waiting), False
            self.lane.wake()
        refused = {i: error for i, error in failed.items() if i not in again}
        if any(isinstance(error, QueueDoesNotExistError) for error in refused.values()):
            with self._lock:
                self._ended, self._bytes = True, 0
                self._waiting.clear()
            self._gone(self)
        elif refused:
            self._drop(sum(batch[i].events for i in refused), str(next(iter(refused.values()))))
        elif outages := [each for each in failed.values() if not isinstance(each, QueueDoesNotExistError)]:
            self._outage.failure(outages[0])
        elif not failed:
            self._outage.success(since)

    def _drop(self, events: int, reason: str) -> None:
        emit(EventsDropped(self.queue.name, events))
        with self._lock:
            said, self._said = self._said, True
        if not said:
            facts = Fields(queue=self.queue.name, events=events, reason=reason)
            log_safely(
                logger.warning,
                "dropped events of Celery for a monitor, which will miss them: they come faster than SQS "
                "takes them, or SQS refuses them (%s). (Said once.)",
                facts,
                extra={"sqs": facts},
            )


#: The bodies of one request. As text within JSON they always fit into 256 KiB.
BATCH_BYTES: Final = 120 * 1024


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One or several events, as JSON. `headers` name their sender."""

    body: str
    headers: Mapping[str, Any]

    @property
    def events(self) -> int:
        """The number of its events."""
        content = json.loads(self.body)
        return len(content) if isinstance(content, list) else 1


def bytes_of(messages: Iterable[EventMessage]) -> int:
    """Total bytes of the messages' bodies, which are ASCII."""
    return sum(len(message.body) for message in messages)


def take_batch(waiting: deque[EventMessage]) -> list[EventMessage]:
    """Remove and return the first waiting messages, merged for one request."""
    groups: list[list[EventMessage]] = []
    free_bytes = BATCH_BYTES
    while waiting and (not groups or len(waiting[0].body) <= free_bytes):
        if groups and waiting[0].headers == groups[-1][0].headers:
            groups[-1].append(waiting[0])
        elif len(groups) < BATCH_ENTRIES:
            groups.append([waiting[0]])
        else:
            break
        free_bytes -= len(waiting.popleft().body)
    return [_merged(group) for group in groups]


def _merged(group: list[EventMessage]) -> EventMessage:
    if len(group) == 1:
        return group[0]
    texts = [message.body.strip() for message in group]
    inner = [text[1:-1] if text.startswith("[") else text for text in texts]
    return replace(group[0], body=f"[{','.join(filter(None, inner))}]")
