"""Inline driver of the core: a pump without threads, whose requests are made by its caller."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Generic

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery.pump import Batch, Lane, Pump, Work
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS

#: Makes a request, and raises an `SQSError` if the answer takes too long.
InTime = Callable[[Callable[[], BatchResult]], BatchResult]


class InlinePump(Pump):
    """A pump whose requests are made by the thread that calls `work_off`.

    Args:
        clock: the monotonic clock.
        in_time: bounds each request; by default a request may take any time.
    """

    def __init__(self, clock: Clock, in_time: InTime = lambda request: request()) -> None:
        super().__init__(clock)
        self._in_time = in_time

    def lane(
        self, duty: str, most: int, work: Work[Batch], hangs_after: float = HUNG_AFTER_SECONDS
    ) -> Lane[Batch]:
        lane = super().lane(duty, most, BoundedWork(work, self._in_time), hangs_after)
        self.add(lane)
        return lane

    def has_thread(self) -> bool:
        """Return `True`: the caller is the thread."""
        return True

    def wake(self, lane: Lane[Any], now: float) -> None:
        """Do nothing: no thread waits."""

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:  # noqa: ARG002 - the pump's
        """Make all requests that are due. Returns whether the condition is then true. Under the lock."""
        self.lock.release()
        try:
            self.work_off()
        finally:
            self.lock.acquire()
        return condition()

    def next_due(self) -> float:
        """The monotonic instant at which the next request is due; infinity if none is."""
        now = self.now()
        for lane in self._lanes:
            lane.refresh(now)
        return min((lane.next_due for lane in self._lanes), default=math.inf)

    def work_off(self) -> None:
        """Make all requests that are due, including those that become due meanwhile."""
        while any(lane.send_next() for lane in self._lanes):
            pass


class BoundedWork(Generic[Batch]):
    """A lane's work whose requests are bounded in time. An answer that is too late is ignored."""

    def __init__(self, work: Work[Batch], in_time: InTime) -> None:
        self.due, self.ready, self.take, self.conclude = work.due, work.ready, work.take, work.conclude
        self._send = work.send
        self._in_time = in_time

    def send(self, batch: Batch, since: float) -> BatchResult:
        return self._in_time(partial(self._send, batch, since))
