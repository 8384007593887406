"""The receivers of a consumer's queues: the latest of each, and stopped ones whose polls may be in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from celery_sqs_visibility.delivery.receive.receiver import Receiver

#: Takes a kombu payload, on the main thread.
OnMessage = Callable[[dict[str, Any]], object]

#: An instant that has passed: do not wait.
NO_WAIT: Final = -math.inf


class Receivers:
    """Receivers by queue name, with the callbacks for their messages.

    The main thread adds them, each in one step; any thread reads, signal handlers too.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[Receiver, OnMessage]] = {}
        self._replaced: list[Receiver] = []  # stopped ones
        self._all: tuple[Receiver, ...] = ()

    def add(self, receiver: Receiver, on_message: OnMessage) -> None:
        """Have this receiver in place of its queue's latest one, which was stopped."""
        name = receiver.queue.name
        replaced = [*self._replaced, self.get(name)]
        self._replaced = [each for each in replaced if each and not each.wait_for_polls(NO_WAIT)]
        self._latest[name] = receiver, on_message
        self._all = *self._replaced, *(latest for latest, _ in self._latest.values())

    def get(self, queue_name: str) -> Receiver | None:
        """The queue's latest receiver, which may be stopped."""
        receiver, _ = self._latest.get(queue_name, (None, None))
        return receiver

    def on_message(self, queue_name: str) -> OnMessage | None:
        """The queue's callback; `None` if the queue is not consumed any more."""
        receiver, on_message = self._latest.get(queue_name, (None, None))
        return None if receiver is None or receiver.stopping else on_message

    def all(self) -> tuple[Receiver, ...]:
        """The latest receivers and the replaced ones."""
        return self._all

    def consumed(self) -> list[str]:
        """The names of the queues that are polled, but for pauses."""
        return [name for name, (receiver, _) in list(self._latest.items()) if not receiver.stopping]

    @property
    def polling(self) -> bool:
        """Whether a poll is in flight, or what it brought is being taken."""
        return any(receiver.polling for receiver in self._all)

    def polled(self) -> set[str]:
        """The names of stopped or paused queues whose polls are in flight."""
        return {each.queue.name for each in self.all() if not each.wait_for_polls(NO_WAIT)}

    def wait_for_polls(self, until: float, queue_name: str | None = None) -> bool:
        """After all, or that queue, were stopped or paused: wait for polls in flight; whether all ended.

        `until` is a monotonic instant.
        """
        wanted = [each for each in self.all() if queue_name in {None, each.queue.name}]
        return all(receiver.wait_for_polls(until) for receiver in wanted)
