"""Monitors that listen to Celery's events. Without a monitor an event costs nothing.

A monitor names its queue in every command that it broadcasts, and Celery's receivers broadcast `heartbeat` as
soon as they listen (celery/events/receiver.py: `wakeup_workers`). So a worker knows a new monitor within a
second, though ListQueues lags by up to a minute. The worker lists older monitors at its start, and twice more
until that lag is over. While a monitor listens, the worker sweeps the queues of dead ones.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.aws.attempts import attempt
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.event_feed import EventFeed, EventMessage
from celery_sqs_visibility.control.inbox import Inbox
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import PASSING_ERRORS, SQSError
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.control_names import Use, use_of

logger = logging.getLogger(__name__)

#: When a worker lists monitors again after its start, to find those that ListQueues did not show yet. Twice,
#: because a monitor may have started just before others could see this worker.
LATER_LOOKS_SECONDS: Final = (60.0, 65.0)

#: How many monitors are added because a command names them: each takes a thread. Others are listed.
MAX_ANNOUNCED: Final = 32

#: Each of these times is lengthened by up to this fraction, so that a fleet does not look at the same time.
SPREAD: Final = 0.15

#: The interval of later lists, while a monitor listens.
LOOK_SECONDS: Final = 600.0

#: Attempts of a worker to list, while the error is one that passes: up to 3 s.
LOOK_ATTEMPTS: Final = 5

#: The interval at which a client lists monitors, which can't announce themselves to it: it takes no commands.
CLIENT_LOOK_SECONDS: Final = 300.0

#: A monitor that is not listed is gone this long after its last announcement: lists may be a minute old.
FORGET_SECONDS: Final = 90.0


class Monitors:
    """The known monitors of one exchange, and their events. Any thread.

    Args:
        in_worker: whether threads send events. A client has none: it sends before `publish` returns.
    """

    def __init__(
        self,
        exchange: str,
        queues: ControlQueues,
        clock: Clock,
        pump: Pump,
        *,
        in_worker: bool,
    ) -> None:
        self._exchange = exchange
        self._queues = queues
        self._clock = clock
        self._pump = pump
        self._in_worker = in_worker
        self._closed = threading.Event()
        self._pause = self._closed.wait
        self._lock = threading.Lock()  # guards everything below
        self._feeds: dict[str, EventFeed] = {}  # by URL; replaced as a whole, so that readers need no lock
        self._watched = False
        self._looked = -math.inf
        self._refused = False

    def publish(self, message: dict[str, Any]) -> None:
        """Send kombu's message to all monitors. Never raises: unsent events are dropped and counted.

        In a worker the message is only buffered. In a client it takes a request for each monitor, and a list
        of queues every five minutes.
        """
        if not self._in_worker:
            self._look_now_and_then()
        feeds = self._feeds.values()
        if not feeds:
            return
        events = EventMessage(wire.text_of(message), message.get("headers") or {})
        for feed in feeds:
            feed.submit(events)
            if not self._in_worker:
                feed.lane.send_next()

    def add_announced(self, addresses: Iterable[str]) -> None:
        """Add the monitors that announced these addresses. Makes no request."""
        found = (self._queues.url_of(self._exchange, address) for address in addresses)
        urls = dict.fromkeys(url for url in found if url is not None)
        room = max(0, MAX_ANNOUNCED - len(self._feeds))
        new = [url for url in urls if url not in self._feeds]
        if len(new) > room:
            logger.info("%d monitors listen already: others are found by SQS's list of queues", MAX_ANNOUNCED)
        self._listen([*(url for url in urls if url in self._feeds), *new[:room]])

    def look(self, attempts: int = 1) -> None:
        """Ask SQS for the monitors' queues, up to `attempts` times if the errors pass."""
        find = partial(self._queues.find, self._exchange)
        try:
            listed = attempt(find, PASSING_ERRORS, map(pause, range(1, attempts)), self._pause)
        except SQSError as error:
            if not self._closed.is_set():
                self._cannot_list(error)
            return
        self._listen(listed)
        self._forget_all_but(listed)

    def watch(self) -> None:
        """Look for monitors in a thread, until none listens. Idempotent."""
        with self._lock:
            watched, self._watched = self._watched, True
        if not watched and start_thread(self._watch, "sqs-monitors") is None:
            self._watched = False

    def flush(self, timeout: float) -> bool:
        """Send the waiting events. Returns whether all were sent within `timeout` seconds."""
        until = self._clock.monotonic() + timeout
        return all(feed.flush(max(0.0, until - self._clock.monotonic())) for feed in self._feeds.values())

    def close(self) -> None:
        """End the threads. Waiting events are not sent."""
        self._closed.set()
        for feed in self._feeds.values():
            feed.lane.stop()

    def _watch(self) -> None:
        """Look for monitors, and delete the queues of killed ones. A thread."""
        self.look(LOOK_ATTEMPTS)
        for seconds in LATER_LOOKS_SECONDS:
            if self._pause(_spread(seconds)):
                return
            self.look(LOOK_ATTEMPTS)
        while not self._is_over() and not self._pause(_spread(LOOK_SECONDS)):
            self._queues.sweep(self._exchange)
            self.look(LOOK_ATTEMPTS)

    def _is_over(self) -> bool:
        with self._lock:
            self._watched = bool(self._feeds)
            return not self._watched

    def _look_now_and_then(self) -> None:
        with self._lock:
            now = self._clock.monotonic()
            due = now - self._looked >= CLIENT_LOOK_SECONDS
            if due:
                self._looked = now  # so that other threads use the monitors known so far
        if due:
            self.look()

    def _cannot_list(self, error: SQSError) -> None:
        with self._lock:
            said, self._refused = self._refused, True
        if not said:
            log_safely(
                logger.warning,
                "cannot list the queues of monitors: those that listen already get no events from here, "
                "those that start from now on do: %s. (Said once.)",
                error,
            )

    def _listen(self, urls: Iterable[str]) -> None:
        for url in urls:
            if feed := self._feeds.get(url):  # one lookup, because another thread may replace the table
                feed.seen()
            else:
                self._add(Queue(url.rpartition("/")[2], url, self._queues.sqs))

    def _add(self, queue: Queue) -> None:
        encode = partial(_encode, self._exchange)
        feed = EventFeed(queue, encode, self._forget, self._clock, self._pump, lingers=self._in_worker)
        with self._lock:
            if queue.url in self._feeds:
                return
            self._feeds = {**self._feeds, queue.url: feed}
        logger.info("a monitor listens to Celery's events (queue=%s)", queue.name)
        if self._in_worker:
            feed.lane.start()
            self.watch()

    def _forget_all_but(self, listed: Collection[str]) -> None:
        """Forget monitors that are gone, because no event may be sent to find that out."""
        before = self._clock.monotonic() - FORGET_SECONDS
        for url, feed in self._feeds.items():
            if url not in listed and feed.seen_at < before:
                self._forget(feed)

    def _forget(self, gone: EventFeed) -> None:
        with self._lock:
            if gone not in self._feeds.values():
                return  # it was forgotten before, and its last events found no queue
            self._feeds = {url: feed for url, feed in self._feeds.items() if feed is not gone}
        gone.lane.stop()
        logger.info("a monitor listens no more (queue=%s)", gone.queue.name)


class EventExchanges:
    """The events of each exchange (Celery's setting `event_exchange`). Any thread.

    Args:
        in_worker: whether this is the main process of a worker.
        use_here: returns what Celery uses an exchange for, by the names in this process's apps.
    """

    def __init__(
        self,
        queues: ControlQueues,
        clock: Clock,
        in_worker: Callable[[], bool],
        use_here: Callable[[str], Use | None],
        pump: Pump,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._pump = pump
        self._in_worker = in_worker
        self._use_here = use_here
        self._lock = ProcessLock()  # guards everything below
        self._monitors: dict[str, Monitors] = {}  # by exchange
        self._inboxes: dict[str, tuple[str, Inbox]] = {}  # by Celery's name of the queue, with its exchange

    def publish(self, exchange: str, message: dict[str, Any]) -> None:
        """Send kombu's message to the monitors that listen, by `Monitors.publish`."""
        self._of(exchange).publish(message)

    def consume(self, queue: str, exchange: str, inbox: Inbox) -> None:
        """Note a new inbox. If it is for events, this process is a monitor."""
        if use_of(exchange) is not Use.COMMANDS:
            with self._lock:
                self._inboxes[queue] = exchange, inbox

    def cancel(self, queue: str) -> None:
        """Forget the queue, which is no longer consumed."""
        with self._lock:
            self._inboxes.pop(queue, None)

    @property
    def listens(self) -> bool:
        """Whether this process is a monitor."""
        return bool(self._inboxes)

    def with_addresses(self, command: dict[str, Any]) -> dict[str, Any]:
        """The command with the addresses of this process's event queues, to announce them to workers.

        Raises:
            SQSError: an event queue can't be created.
        """
        with self._lock:
            inboxes = list(self._inboxes.values())
        if not inboxes:
            return command
        addresses: dict[str, list[str]] = {}
        for exchange, inbox in inboxes:
            addresses.setdefault(exchange, []).append(inbox.address())
        return {**command, "headers": {**(command.get("headers") or {}), wire.MONITORS: addresses}}

    def add_monitors(self, announced: Mapping[str, Sequence[str]]) -> None:
        """Add monitors that a command names, of exchanges that this process's apps use. Makes no request."""
        for exchange, addresses in announced.items():
            if self._use_here(exchange) is Use.EVENTS:
                self._of(exchange).add_announced(addresses)

    def close(self, timeout: float) -> None:
        """Send the waiting events, for at most `timeout` seconds, and end the threads."""
        until = self._clock.monotonic() + timeout
        for monitors in list(self._monitors.values()):
            monitors.flush(max(0.0, until - self._clock.monotonic()))
            monitors.close()

    def _of(self, exchange: str) -> Monitors:
        with self._lock:
            if (monitors := self._monitors.get(exchange)) is None:
                in_worker = self._in_worker()
                monitors = Monitors(exchange, self._queues, self._clock, self._pump, in_worker=in_worker)
                self._monitors[exchange] = monitors
                if in_worker:
                    monitors.watch()
            return monitors


def _spread(seconds: float) -> float:
    return seconds * random.uniform(1, 1 + SPREAD)  # noqa: S311


def _encode(exchange: str, message: EventMessage) -> OutgoingMessage:
    return OutgoingMessage(wire.envelope(message.body, message.headers, exchange, ""))
