"""What a running task can know and do about its message: `self.visibility`."""

from __future__ import annotations

import math
import threading
from typing import NoReturn

from celery.app.task import Context
from celery.exceptions import Reject

from celery_sqs_visibility.delivery.lease_table import Lease, lease_table, spawned_lease_table
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON

#: Seconds that SQS may take to extend a message, an error and another attempt included.
EXTEND_TIMEOUT = 10.0

#: Seconds between looks at whether it has.
LOOK_AGAIN = 0.005


class VisibilityLostError(Exception):
    """The message's visibility lapsed: another worker may have it."""


class Visibility:
    """The lease of a running task's message. Works in every pool; makes no request to SQS itself.

    On any other broker, called directly or eagerly, nothing ever lapses: `remaining()` is infinite.

    Args:
        request: the task's.
    """

    def __init__(self, request: Context) -> None:
        key = request.visibility_lease
        self._from_sqs = request.sqs is not None
        self._lease_table = lease_table() or (None if key is None else spawned_lease_table(key))
        self._lease: Lease | None = (
            None if key is None or self._lease_table is None else self._lease_table.lease(key)
        )

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down: after `shutdown_timeout` the message is handed back anyway.

        A long task looks at it now and then, saves its place, and calls `release()`.
        """
        return self._lease_table is not None and self._lease_table.stopping

    @property
    def lost(self) -> bool:
        """Whether the visibility has lapsed: another worker may run the task too, by now or soon."""
        return self.remaining() <= 0

    def remaining(self) -> float:
        """Seconds until the message becomes visible to others, unless it is extended; 0 if it has.

        The heartbeat extends it, so with one this seldom falls below `heartbeat_interval`.
        """
        if self._lease is None:
            return math.inf
        seconds = self._lease.deadline - SYSTEM_CLOCK.monotonic()
        return 0.0 if self._lease.lost else max(0.0, seconds)

    def extend(self, seconds: float) -> float:
        """Keep the message hidden for that many seconds from now, at least: never shortens.

        Needed where the heartbeat is off, or before something that keeps the whole worker from extending.

        Returns:
            `remaining()`, which is less than asked for where SQS's 12 hours end before.

        Raises:
            ValueError: `seconds` is not a number between 0 and 12 hours.
            VisibilityLostError: it is too late.
            TimeoutError: SQS has not confirmed it in time; the worker goes on trying.
            RuntimeError: the task has no lease: some 65,000 others run, or its process, spawned, may not open
                the worker's memory.
        """
        if not 0 <= seconds <= VISIBILITY_HORIZON:
            raise ValueError(f"expected 0 to {VISIBILITY_HORIZON} seconds (SQS's 12 hours), got {seconds!r}")
        lease = self._lease
        if lease is None:
            if self._from_sqs:
                raise RuntimeError("the message cannot be extended from here: its worker gave it no lease")
            return math.inf
        now = SYSTEM_CLOCK.monotonic()
        if not self.lost and lease.deadline < now + seconds:
            lease.request(now + seconds)
            pause = threading.Event()
            while lease.requested_deadline and not self.lost:
                if SYSTEM_CLOCK.monotonic() > now + EXTEND_TIMEOUT:
                    raise TimeoutError(
                        f"SQS has not confirmed within {EXTEND_TIMEOUT:g} s that the message is hidden for "
                        f"{seconds:g} s; it is for {self.remaining():.1f} s"
                    )
                pause.wait(LOOK_AGAIN)
        if self.lost:
            raise VisibilityLostError("the message's visibility has lapsed: another worker may have it")
        return self.remaining()

    def release(self) -> NoReturn:
        """End the run and give the message back: it is visible again at once, to any worker.

        The task runs again from its beginning, so save the place first. SQS counts it as a receive, and so it
        counts as an attempt.

        Raises:
            Reject: always; let it pass. It is Celery's own, with `requeue=True`.
        """
        raise Reject("released", requeue=True)
