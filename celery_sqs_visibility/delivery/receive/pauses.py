"""Pauses of queues, in which a process does not poll them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class Pause:
    """The monotonic instants of a pause; `until` is infinity if it has no end."""

    began: float
    until: float


class Pauses:
    """Paused queues, by Celery's names. One for each process: a pause outlasts a connection.

    Any thread, without a lock: each method reads or writes the table once. A pause that is over counts as
    none.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._pauses: dict[str, Pause] = {}

    def pause(self, queue: str, seconds: float = math.inf) -> None:
        """Pause the queue from now on, for `seconds`, instead of any pause that it has."""
        now = self._clock.monotonic()
        self._pauses[queue] = Pause(now, now + seconds)

    def resume(self, queue: str) -> None:
        """End the queue's pause, if it has one."""
        self._pauses.pop(queue, None)

    def get(self, queue: str) -> Pause | None:
        """The queue's pause, if it has one now."""
        pause = self._pauses.get(queue)
        return pause if pause is not None and self._clock.monotonic() < pause.until else None

    def until(self, queue: str) -> float:
        """The monotonic instant at which the queue's latest pause ends or has ended."""
        pause = self._pauses.get(queue)
        return -math.inf if pause is None else pause.until

    def seconds_left(self, queue: str) -> float:
        """How long the queue's pause still lasts; 0 without one."""
        return max(0.0, self.until(queue) - self._clock.monotonic())
