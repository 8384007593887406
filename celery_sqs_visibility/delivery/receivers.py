"""The receivers of a consumer's queues, and who takes their messages."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

from celery_sqs_visibility.delivery.receive.receiver import Receiver

#: Takes a kombu payload, on the main thread.
OnMessage = Callable[[dict[str, Any]], object]

#: An instant that has passed: do not wait.
AT_ONCE: Final = -math.inf


class Receivers:
    """One receiver a queue, and replaced ones whose polls are in flight. Any thread.

    `stop` and `stop_all` run in signal handlers too, and take no lock that the main thread may hold half-way.
    """

    def __init__(self) -> None:
        # Guards changes of both fields. Reentrant: Celery's cold shutdown settles in a signal handler.
        self._lock = threading.RLock()
        self._active: dict[str, tuple[Receiver, OnMessage]] = {}
        self._retired: list[Receiver] = []

    def __len__(self) -> int:
        return len(self._active)

    def active(self) -> list[Receiver]:
        """Those that were added and not retired; they may be stopped."""
        return [receiver for receiver, _ in list(self._active.values())]

    def get(self, queue_name: str) -> Receiver | None:
        """The queue's."""
        receiver, _ = self._active.get(queue_name, (None, None))
        return receiver

    def on_message(self, queue_name: str) -> OnMessage | None:
        """The queue's callback; `None` if it is not consumed any more."""
        receiver, on_message = self._active.get(queue_name, (None, None))
        return None if receiver is None or receiver.stopping else on_message

    def add(self, receiver: Receiver, on_message: OnMessage) -> None:
        """Have it, in place of the queue's receiver so far, which is stopped."""
        with self._lock:
            self._retire(receiver.queue.name)
            self._active[receiver.queue.name] = receiver, on_message

    def retire_all(self) -> None:
        """Forget all but their polls in flight."""
        with self._lock:
            for queue_name in list(self._active):
                self._retire(queue_name)

    def _retire(self, queue_name: str) -> None:
        receiver, _ = self._active.pop(queue_name, (None, None))
        if receiver is not None:
            self._retired.append(receiver)

    def polling(self) -> set[str]:
        """The queues that have polls in flight."""
        return {receiver.queue.name for receiver in self.active() if not receiver.settle_down(AT_ONCE)}

    def wait_for_polls(self, until: float) -> bool:
        """After a stop: wait for polls in flight until that monotonic instant; whether all have ended."""
        with self._lock:
            receivers = [*self._retired, *self.active()]
        ended = all(receiver.settle_down(until) for receiver in receivers)
        with self._lock:
            self._retired = [each for each in self._retired if not each.settle_down(AT_ONCE)]
        return ended
