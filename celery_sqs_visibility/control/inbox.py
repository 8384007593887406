"""The control queue of one consumer: its thread, which creates, polls and tags it, and its mailbox."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from celery_sqs_visibility.aws.port import ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.control.queues import SIGN_OF_LIFE_SECONDS, ControlQueues
from celery_sqs_visibility.core.recent import RecentKeys
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.control_names import address_in
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, WAIT_TIME_SECONDS

logger = logging.getLogger(__name__)

#: No visibility timeout is given: the queue's own outlasts its messages.
RECEIVE: Final = ReceiveOptions(system_attributes=("ApproximateFirstReceiveTimestamp", "SentTimestamp"))

#: Threads that poll beside the inbox's while batches come back full, and how long such a poll waits.
MAX_HELPERS: Final = 7
HELPER_WAIT_SECONDS: Final = 2

#: The interval of sweeps. It is also the longest time until the first, which is random, to spread a fleet's
#: sweeps.
SWEEP_SECONDS: Final = 3600
FIRST_SWEEP_SECONDS: Final = 600

#: The longest pauses after consecutive errors: errors that pass, and a permission that was never there.
MAX_PAUSE_SECONDS: Final = 30.0
REFUSED_PAUSE_SECONDS: Final = 300.0

#: Up to this many consecutive errors, pauses are as short as those of other requests.
SHORT_PAUSES: Final = 5

#: Pause after an unexpected error, which is a bug.
PAUSE_SECONDS: Final = 5.0

#: How often a full consumer is checked.
FULL_PAUSE_SECONDS: Final = 0.1

#: SQS may not know a younger queue yet; polls of it are repeated after the second of these times.
NEW_SECONDS: Final = 10.0
NEW_PAUSE_SECONDS: Final = 0.2

#: How long a caller waits for a new queue's address.
CREATION_SECONDS: Final = 10.0

UNEXPECTED: Final = "unexpected error in a thread that polls a control queue; continuing"


#: Returns whether a message may still be handled. Called by the consumer's thread.
IsInTime = Callable[[], bool]

#: Passes a message to its consumer's thread.
Put = Callable[[dict[str, Any], IsInTime], None]


def never() -> bool:
    """Return `False`: the default for a consumer whose backlog is never full."""
    return False


class Mailbox:
    """The messages of one queue for Celery's consumer, without duplicates. Any thread.

    After an error the consumer is replaced: messages wait for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._put: Put | None = None
        self._is_full: Callable[[], bool] = never
        self._waiting: list[tuple[dict[str, Any], IsInTime]] = []
        self._seen: RecentKeys[str] = RecentKeys(10_000)  # as long as SQS keeps them: a minute

    @property
    def is_open(self) -> bool:
        """Whether there is a consumer."""
        return self._put is not None

    def is_full(self) -> bool:
        """Whether the consumer's backlog is full, so that more messages should stay in SQS."""
        return self._is_full()

    def open(self, put: Put, is_full: Callable[[], bool] = never) -> None:
        """Set the consumer. It gets the messages that came before it."""
        with self._lock:
            self._put, self._is_full = put, is_full
            waiting, self._waiting = self._waiting, []
        for payload, is_in_time in waiting:
            put(payload, is_in_time)

    def close(self) -> None:
        """Remove the consumer. Messages wait for the next one."""
        with self._lock:
            self._put = None

    def deliver(self, message_id: str, payload: dict[str, Any], is_in_time: IsInTime) -> None:
        """Put the message, unless a copy came before: SQS may deliver twice, and senders may retry."""
        with self._lock:
            is_new = self._seen.add(message_id, 0.0)
        if is_new:
            self.put(payload, is_in_time)

    def put(self, payload: dict[str, Any], is_in_time: IsInTime) -> None:
        """Pass the message to the consumer, or to the next one if there is none now."""
        with self._lock:
            put = self._put
            if put is None:
                self._waiting.append((payload, is_in_time))
        if put is not None:
            put(payload, is_in_time)


class Inbox:
    """Polls one control queue, which it creates and deletes. Only `address` waits for SQS.

    Args:
        node: the owner of the queue.
        deliver: called with each received message, in the inbox's thread.
        sweeps: the exchanges whose stale queues it deletes.
        wanted: whether a consumer waits for messages now.
        is_full: whether the consumer's backlog is full; then messages stay in SQS until they expire.
        idle_seconds: the queue is deleted when it was not wanted for this long.
        moved: called in a thread when another queue was created to replace a deleted one.
    """

    def __init__(
        self,
        queues: ControlQueues,
        exchange: str,
        node: str,
        deliver: Callable[[ReceivedMessage], None],
        clock: Clock,
        *,
        sweeps: Sequence[str] = (),
        wanted: Callable[[], bool] = lambda: True,
        is_full: Callable[[], bool] = lambda: False,
        idle_seconds: float = math.inf,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._queues = queues
        self._exchange, self._node = exchange, node
        self._deliver = deliver
        self._clock = clock
        self._sweeps = sweeps
        self._wanted = wanted
        self._is_full = is_full
        self._idle_seconds = idle_seconds
        self._moved = moved
        self._outage = Outage(logger, "use its control queue", node, clock, kind="node")
        self._stopped = threading.Event()
        self._helpers = threading.BoundedSemaphore(MAX_HELPERS)
        self._changed = threading.Condition()  # guards everything below
        self._url: str | None = None  # of its queue
        self._usable = False  # whether SQS has answered a poll of it
        self._error: SQSError | None = None
        self._deleting: threading.Thread | None = None
        self._used_at = clock.monotonic()
        self._made_at = self._renew_at = -math.inf  # the thread's alone, as all below
        self._sweep_at = clock.monotonic() + FIRST_SWEEP_SECONDS * random.random()  # noqa: S311
        self._failures = 0

    def start(self) -> None:
        """Start the thread, which creates the queue. Call it once."""
        if start_thread(self._run, "sqs-control-inbox") is None:
            raise RuntimeError("cannot start the thread that polls a control queue")

    def use(self) -> bool:
        """Keep the queue for a while longer. Returns `False` if the inbox has ended."""
        with self._changed:
            self._used_at = self._clock.monotonic()
            return not self._stopped.is_set()

    def address(self) -> str:
        """The queue's address. Waits until the queue is created and usable, about a second.

        Raises:
            SQSError: the queue can't be created or polled, or the inbox has ended; another may be made then.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._usable or self._error or self._stopped.is_set(), CREATION_SECONDS
            )
            if self._url is not None and self._usable:
                return address_in(self._url)
            raise self._error or UnavailableError("SQS does not answer: no queue for the replies was made")

    def stop(self) -> None:
        """End the thread. Another one deletes the queue, because the first may still wait for its poll."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
            url, self._url = self._url, None
            if url is not None:
                self._deleting = start_thread(self._queues.delete, "sqs-control-delete", url)
        if url is not None and self._deleting is None:  # no thread: the interpreter is ending
            self._queues.delete(url)

    @property
    def is_deleting(self) -> bool:
        """Whether the queue is about to be deleted."""
        return self._deleting is not None and self._deleting.is_alive()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the queue is deleted. Call it after `stop`."""
        if self._deleting is not None:
            self._deleting.join(timeout)

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._clock.monotonic()
            try:
                self._poll(self._url or self._create())
            except SQSError as error:
                self._failed(error)
            except Exception:
                logger.exception(UNEXPECTED)
                self._stopped.wait(PAUSE_SECONDS)
            else:
                self._failures = 0
                self._outage.success(began)

    def _poll(self, url: str) -> None:
        self._keep(url, self._clock.monotonic())
        if self._is_full():
            self._stopped.wait(FULL_PAUSE_SECONDS)
        else:
            has_more = self._receive(url, self._wait_seconds())
            self._answered(url)
            if has_more:
                self._get_help(url)
        if self._wanted():
            self.use()
        elif self._clock.monotonic() - self._used_at >= self._idle_seconds:
            self.stop()

    def _wait_seconds(self) -> int:
        if not self._usable:
            return 0
        return 1 if self._failures else WAIT_TIME_SECONDS  # so that the log soon reports a success

    def _answered(self, url: str) -> None:
        """Let others have the queue's address from now on, because SQS has answered a poll of it."""
        with self._changed:
            if self._usable or self._stopped.is_set():
                return
            self._usable, self._error = True, None
            self._changed.notify_all()
        logger.info("takes messages of remote control (node=%s, queue=%s)", self._node, url)

    def _receive(self, url: str, wait: int) -> bool:
        """Receive and deliver. Returns whether there may be more."""
        messages = self._queues.sqs.receive(url, BATCH_ENTRIES, wait, RECEIVE)
        # In the order of sending, within one answer: SQS does not keep the order.
        for message in sorted(messages, key=lambda each: int(each["Attributes"].get("SentTimestamp", 0))):
            try:
                self._deliver(message)
            except Exception:  # the other messages would stay hidden until they expire
                logger.exception(UNEXPECTED)
        return len(messages) == BATCH_ENTRIES

    def _get_help(self, url: str) -> None:
        has_room = self._helpers.acquire(blocking=False)
        if has_room and start_thread(self._help, "sqs-control-inbox", url) is None:
            self._helpers.release()

    def _help(self, url: str) -> None:
        """Poll beside the inbox's thread while batches come back full: many workers answer. A thread."""
        try:
            more = True
            while more and not self._stopped.is_set() and not self._is_full():
                more = self._receive(url, HELPER_WAIT_SECONDS)
        except SQSError as error:
            logger.debug("a second poll of a control queue failed: %s", error)
        finally:
            self._helpers.release()

    def _keep(self, url: str, now: float) -> None:
        """Give a sign of life, and sweep, if that is due."""
        if now >= self._renew_at:
            self._renew_at = now + SIGN_OF_LIFE_SECONDS
            try:
                self._queues.renew(url)
            except AccessDeniedError as error:
                logger.warning(
                    "cannot tag the control queue of %s with a sign of life, so other workers may delete the "
                    "queue, and another is made: %s",
                    self._node,
                    error,
                )
        if now >= self._sweep_at:
            # At different times in the workers of a fleet.
            self._sweep_at = now + SWEEP_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311
            for exchange in self._sweeps:
                start_thread(self._queues.sweep, "sqs-control-sweep", exchange)

    def _create(self) -> str:
        url = self._queues.create(self._exchange, self._node)
        is_first = self._made_at == -math.inf
        self._made_at = self._clock.monotonic()
        self._renew_at = self._made_at + SIGN_OF_LIFE_SECONDS
        with self._changed:
            if not self._stopped.is_set():
                self._url, self._error = url, None
                if not is_first:
                    start_thread(self._moved, "sqs-control-moved")
                return url
        self._queues.delete(url)
        raise QueueDoesNotExistError("stopped while it was made")

    def _failed(self, error: SQSError) -> None:
        if self._stopped.is_set():
            return  # it polled a queue that was deleted
        missing, usable = isinstance(error, QueueDoesNotExistError), self._usable
        if missing and self._clock.monotonic() - self._made_at < NEW_SECONDS:
            self._stopped.wait(NEW_PAUSE_SECONDS)
            return
        with self._changed:
            if missing:
                # Another process swept it, because this one was suspended for long: create another.
                self._url, self._usable = None, False
            elif not usable:
                self._error = error
                self._changed.notify_all()
        if not usable and self._idle_seconds < math.inf and isinstance(error, RefusedError):
            self.stop()  # the caller gets the error; its next command creates another
        if not missing:
            self._failures += 1
            self._outage.failure(error)
            self._stopped.wait(_pause(error, self._failures, worked=usable))


def _pause(error: SQSError, failures: int, *, worked: bool) -> float:
    """Seconds until the next attempt, with jitter, because a fleet meets the same error at the same time.

    A permission with which the queue has `worked` before is likely to come back.
    """
    if isinstance(error, RefusedError) and not worked:
        return REFUSED_PAUSE_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311
    return pause(failures) if failures <= SHORT_PAUSES else MAX_PAUSE_SECONDS * random.uniform(0.1, 1)  # noqa: S311
