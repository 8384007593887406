"""Celery's events in this process: those that it sends, and the queues by which it listens to others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.inbox import Inbox
from celery_sqs_visibility.control.monitors import Monitors
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.exchange_uses import Use, use_of


class EventExchanges:
    """The events of each exchange (Celery's setting `event_exchange`). Any thread.

    Args:
        queues: the directory of control queues.
        clock: the clock.
        in_worker: whether this is the main process of a worker.
        use_here: what an exchange is for, as the apps of this process name theirs.
    """

    def __init__(
        self,
        queues: ControlQueues,
        clock: Clock,
        in_worker: Callable[[], bool],
        use_here: Callable[[str], Use | None],
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._in_worker = in_worker
        self._use_here = use_here
        self._lock = ProcessLock()  # guards what follows
        self._monitors: dict[str, Monitors] = {}  # by exchange
        self._inboxes: dict[str, tuple[str, Inbox]] = {}  # with its exchange, by Celery's name of the queue

    def publish(self, exchange: str, message: dict[str, Any]) -> None:
        """Send kombu's message to the monitors that listen. See `Monitors.publish`."""
        self._of(exchange).publish(message)

    def consume(self, queue: str, exchange: str, inbox: Inbox) -> None:
        """An inbox was made, perhaps for events: then this process is a monitor."""
        if use_of(exchange) is not Use.COMMANDS:
            with self._lock:
                self._inboxes[queue] = exchange, inbox

    def cancel(self, queue: str) -> None:
        """The queue is consumed no more."""
        with self._lock:
            self._inboxes.pop(queue, None)

    @property
    def listens(self) -> bool:
        """Whether this process is a monitor."""
        return bool(self._inboxes)

    def announced(self, command: dict[str, Any]) -> dict[str, Any]:
        """The command, which names this process's queues of events, if any: so that workers hear of them.

        Raises:
            SQSError: such a queue cannot be made.
        """
        with self._lock:
            inboxes = list(self._inboxes.values())
        if not inboxes:
            return command
        addresses: dict[str, list[str]] = {}
        for exchange, inbox in inboxes:
            addresses.setdefault(exchange, []).append(inbox.address())
        return {**command, "headers": {**(command.get("headers") or {}), wire.MONITORS: addresses}}

    def heard(self, announced: Mapping[str, Sequence[str]]) -> None:
        """A command has named monitors, by exchange, of which this process heeds its own. No request."""
        for exchange, addresses in announced.items():
            if self._use_here(exchange) is Use.EVENTS:
                self._of(exchange).told(addresses)

    def close(self, timeout: float) -> None:
        """Send the events that wait, for some seconds at the most, and end the threads."""
        until = self._clock.monotonic() + timeout
        for monitors in list(self._monitors.values()):
            monitors.flush(max(0.0, until - self._clock.monotonic()))
            monitors.close()

    def _of(self, exchange: str) -> Monitors:
        with self._lock:
            if (monitors := self._monitors.get(exchange)) is None:
                in_worker = self._in_worker()
                monitors = Monitors(exchange, self._queues, self._clock, in_worker=in_worker)
                self._monitors[exchange] = monitors
                if in_worker:
                    monitors.watch()
            return monitors
