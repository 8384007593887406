"""The receivers of a consumer's queues, and the callbacks that take their messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from celery_sqs_visibility.delivery.receive.receiver import Receiver

#: Takes a kombu payload, on the main thread.
OnMessage = Callable[[dict[str, Any]], object]

#: An instant that has passed: do not wait.
AT_ONCE: Final = -math.inf


class Receivers:
    """One receiver a queue, and replaced ones whose polls are in flight.

    No lock: the consumer's main thread alone calls `add`, and each of its changes is atomic.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[Receiver, OnMessage]] = {}
        self._replaced: list[Receiver] = []

    def add(self, receiver: Receiver, on_message: OnMessage) -> None:
        """Have it, in place of the queue's receiver so far, which is stopped."""
        replaced = self.get(receiver.queue.name)
        self._replaced = [each for each in [*self._replaced, replaced] if each and _polls(each)]
        self._latest[receiver.queue.name] = receiver, on_message

    def get(self, queue_name: str) -> Receiver | None:
        """The queue's latest receiver, which may be stopped."""
        receiver, _ = self._latest.get(queue_name, (None, None))
        return receiver

    def on_message(self, queue_name: str) -> OnMessage | None:
        """The queue's callback; `None` if it is not consumed any more."""
        receiver, on_message = self._latest.get(queue_name, (None, None))
        return None if receiver is None or receiver.stopping else on_message

    def all(self) -> list[Receiver]:
        """Each queue's latest, and those that were replaced."""
        return [*self._replaced, *(receiver for receiver, _ in list(self._latest.values()))]

    def polling(self) -> set[str]:
        """The queues that have polls in flight."""
        return {receiver.queue.name for receiver in self.all() if _polls(receiver)}

    def wait_for_polls(self, until: float) -> bool:
        """After a stop: wait for polls in flight until that monotonic instant; whether all have ended."""
        return all(receiver.settle_down(until) for receiver in self.all())


def _polls(receiver: Receiver) -> bool:
    return not receiver.settle_down(AT_ONCE)
