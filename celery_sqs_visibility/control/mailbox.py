"""Messages for one of Celery's consumers, each once. Messages without a consumer wait for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from celery_sqs_visibility.core.recent import RecentKeys

#: Ids of messages that a mailbox remembers. A message in a control queue is gone after a minute.
REMEMBERED: Final = 10_000

#: Tells whether a message may still be handled: asked by the consumer's thread.
IsInTime = Callable[[], bool]

#: Gives a message to its consumer's thread.
Put = Callable[[dict[str, Any], IsInTime], None]


def never() -> bool:
    """A consumer whose backlog is never full."""
    return False


class Mailbox:
    """The messages of one queue for Celery's consumer, which may come and go after an error. Any thread.

    Args:
            put: takes delivered messages; `None` until there is a consumer.
        is_full: whether the consumer's backlog is full; then messages stay at SQS.
    """

    def __init__(self, put: Put | None = None, is_full: Callable[[], bool] = never) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._put = put
        self._is_full = is_full
        self._waiting: list[tuple[dict[str, Any], IsInTime]] = []
        self._seen: RecentKeys[str] = RecentKeys(REMEMBERED)

    @property
    def is_open(self) -> bool:
        """Whether there is a consumer."""
        return self._put is not None

    def is_full(self) -> bool:
        """Whether more messages stay at SQS."""
        return self._is_full()

    def open(self, put: Put, is_full: Callable[[], bool] = never) -> None:
        """Add the consumer, which gets the messages that came before it."""
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
        """Put the message, unless a copy of it came before: SQS may deliver twice, and senders repeat."""
        with self._lock:
            is_new = self._seen.add(message_id, 0.0)
        if is_new:
            self.put(payload, is_in_time)

    def put(self, payload: dict[str, Any], is_in_time: IsInTime) -> None:
        """Give the message to the consumer, or to the next one if there is none now."""
        with self._lock:
            put = self._put
            if put is None:
                self._waiting.append((payload, is_in_time))
        if put is not None:
            put(payload, is_in_time)
