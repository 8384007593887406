"""A running task's view of its message, and of its progress: `self.visibility`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Final, NoReturn, TypeVar

from celery.exceptions import Reject

from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED, Lease, find_lease, lease_table_of
from celery_sqs_visibility.errors import InactivityError, VisibilityLostError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.run_limits import NEAR_HORIZON_SECONDS, until_horizon

__all__ = ["Visibility", "VisibilityLostError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROGRESS: Final = "PROGRESS"

#: The shortest time between two PROGRESS states.
PROGRESS_INTERVAL_SECONDS: Final = 1.0

PERCENT: Final = 100


class Progress:
    """Stores a run's progress in Celery's result backend. The run's own thread.

    At once, then at most once a second and, if the total is known, once a percent. A failure to store is
    logged once, and does not end the run. Nothing is stored for a task that ignores its result, or is called
    directly or eagerly, nor while its message is lost: another run may have stored how the task ended.
    """

    def __init__(self, task: Any, request: Any, total: int | None) -> None:
        untold = request.called_directly or request.is_eager or request.ignore_result or task.ignore_result
        # Beyond its last attempt a run leaves STARTED: see `worker.visibility_request`.
        beyond = request.sqs is not None and task.is_beyond_limit(request)
        self._task = None if untold or beyond else task
        self._visibility = Visibility(request)
        self._total = total
        self._stored_at = -math.inf
        self._percent: int | None = None
        self._failed = False

    def show(self, current: int, *, last: bool = False) -> None:
        """Show that `current` items are done. With `last`, the number is stored in any case."""
        if self._task is None or not (self._is_due(current) or last) or self._visibility.lost:
            return
        try:
            self._task.update_state(state=PROGRESS, meta={"current": current, "total": self._total})
        except Exception:
            if not self._failed:
                logger.exception("progress of task %s could not be stored; the run goes on", self._task.name)
            self._failed = True

    def _is_due(self, current: int) -> bool:
        now = SYSTEM_CLOCK.monotonic()
        percent = PERCENT * current // self._total if self._total else None
        same_percent = percent is not None and percent == self._percent
        if same_percent or now - self._stored_at < PROGRESS_INTERVAL_SECONDS:
            return False
        self._stored_at, self._percent = now, percent
        return True


#: How long SQS may take to extend a message, including an error and a retry.
EXTEND_TIMEOUT_SECONDS = 10.0

#: The interval at which to check whether SQS has extended the message.
EXTEND_CHECK_SECONDS = 0.005


class Visibility:
    """The lease of a running task's message. Works in every pool; makes no request to SQS itself.

    On any other broker, called directly or eagerly, nothing ever lapses: `remaining()` is infinite.
    """

    def __init__(self, request: Any, task: Any = None) -> None:
        key = request.visibility_lease
        self._task = task
        self._request = request
        self._from_sqs = request.sqs is not None
        self._run = request.visibility_run
        self._lease_table = lease_table_of(key)
        self._lease = find_lease(key)

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down: after `shutdown_timeout` the message is released anyway.

        A long task checks it from time to time, saves its place and calls `release()`.
        """
        return self._lease_table is not None and self._lease_table.stopping

    @property
    def lost(self) -> bool:
        """Whether the visibility has lapsed: another worker may run the task, too."""
        return self.remaining() <= 0

    def remaining(self) -> float:
        """Seconds until the message becomes visible to others, unless it is extended; 0 if it is.

        The heartbeat extends it in time, so this seldom falls below `heartbeat_interval`.
        """
        if self._lease is None:
            return math.inf
        # Read before `lost`: after the lease is over, this may be another delivery's deadline.
        seconds = self._lease.deadline - SYSTEM_CLOCK.monotonic()
        return 0.0 if self._lease.lost else max(0.0, seconds)

    def until_horizon(self) -> float:
        """Seconds until SQS's 12 hours end, when the message becomes visible in any case."""
        sqs, lease = self._request.sqs, self._lease
        horizon = math.inf if sqs is None else sqs["horizon"]
        if lease is not None:
            renewed = lease.horizon  # the message may have come back; read before `over`, as in `remaining`
            horizon = horizon if lease.over else renewed
        return until_horizon(horizon, SYSTEM_CLOCK.monotonic())

    @property
    def near_horizon(self) -> bool:
        """Whether at most 15 minutes of SQS's 12 hours are left: end the run, or `continue_later()`."""
        return self.until_horizon() <= NEAR_HORIZON_SECONDS

    def alive(self) -> None:
        """Give a sign of life, if the task has an `inactivity_timeout`. Costs no request.

        Raises:
            InactivityError: it is too late, and the pool could not end the run. Do not catch it.
        """
        if self._lease is None or (last_sign := self._lease.last_sign) == UNWATCHED or self._lease.over:
            return
        if last_sign == INACTIVE:
            raise InactivityError.after(self._task.inactivity_timeout)
        self._lease.last_sign = SYSTEM_CLOCK.monotonic()

    def track(self, iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate over the items: each is a sign of life, and the state PROGRESS says how many are done.

        The state's `info` is `{"current": ..., "total": ...}`. It is stored at once, then at most once
        a second and once a percent, and at the end.

        Args:
            iterable: the items.
            total: their number; `None`: `len(iterable)` if it has one, otherwise unknown.
        """
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        progress, current = Progress(self._task, self._request, total), 0
        for item in iterable:
            self.alive()
            progress.show(current)
            yield item
            current += 1
        self.alive()
        progress.show(current, last=True)

    def extend(self, seconds: float) -> float:
        """Keep the message hidden for at least that many seconds from now. Never shortens.

        Needed if the heartbeat is off, or before code that keeps the whole worker from extending.

        Returns:
            `remaining()`, which is less than asked for if SQS's 12 hours end before.

        Raises:
            ValueError: `seconds` is not a number between 0 and 12 hours.
            VisibilityLostError: it is too late.
            TimeoutError: SQS has not confirmed it in time; the worker keeps trying.
            RuntimeError: the task has no lease: some 65,000 others run, or its spawned process may not open
                the worker's memory.
        """
        if not 0 <= seconds <= VISIBILITY_HORIZON_SECONDS:
            raise ValueError(
                f"expected 0 to {VISIBILITY_HORIZON_SECONDS} seconds (SQS's 12 hours), got {seconds!r}"
            )
        if self._lease is None:
            if self._request.sqs is not None:
                raise RuntimeError("the message cannot be extended from here: its worker gave it no lease")
            return math.inf
        until = SYSTEM_CLOCK.monotonic() + seconds
        if not self.lost and self._lease.deadline < until:
            self._lease.request(until)
            self._wait_for_extension(self._lease, seconds)
        if self.lost:
            raise VisibilityLostError("the message's visibility has lapsed: another worker may have it")
        return self.remaining()

    def _wait_for_extension(self, lease: Lease, seconds: float) -> None:
        give_up_at = SYSTEM_CLOCK.monotonic() + EXTEND_TIMEOUT_SECONDS
        while lease.requested_deadline and not self.lost:
            if SYSTEM_CLOCK.monotonic() > give_up_at:
                raise TimeoutError(
                    f"SQS has not confirmed within {EXTEND_TIMEOUT_SECONDS:g} s that the message is hidden "
                    f"for {seconds:g} s; it is for {self.remaining():.1f} s"
                )
            sleep(EXTEND_CHECK_SECONDS)

    def release(self) -> NoReturn:
        """End the run and give the message back: it is visible at once, to any worker.

        The task runs again from its beginning, so save the place first. A release counts as an attempt.

        Raises:
            Reject: always; do not catch it. It is Celery's own, with `requeue=True`.
        """
        raise Reject("released", requeue=True)

    def continue_later(self, **kwargs: Any) -> NoReturn:
        """End the run, and continue the task in a new message, with new 12 hours and new attempts.

        The message has the task's id, queue, arguments with `kwargs` changed, callbacks, errbacks, chain,
        chord, priority, expiry and limits: callbacks and canvas steps follow the task's last part. It is sent
        before the present one is deleted; if it cannot be sent, the present one comes back, as after any
        failure. The state is RETRY until the task continues.

        If the message is lost nothing is sent: another worker runs the task from the last message on.

        On any other broker the task is published likewise; eagerly, it is called again at once; called
        directly, it only raises.

        Raises:
            Retry: the message is sent. Do not catch this exception of Celery's.
            Reject: the message is lost. Do not catch it either.
        """
        raise self._task.publish_continuation(kwargs)

    def checkpoint(self, value: Any) -> None:
        """Keep a value that JSON can express for the next attempt of an exclusive task: one request.

        A success drops it. On any other broker, called directly or eagerly, it is not kept.

        Raises:
            RuntimeError: the task is not exclusive.
            TypeError, ValueError: JSON cannot express the value, or it is too large.
            VisibilityLostError: another run has the key.
            StoreError: the store does not answer, or refuses.
        """
        if self._run is not None:
            self._run.save(value)
        elif self._from_sqs:
            raise RuntimeError("only an exclusive task has checkpoints: give it exclusive=True")

    @property
    def last_checkpoint(self) -> Any:
        """The value that this run, or an attempt before it, saved last; `None` if none did."""
        return None if self._run is None else self._run.checkpoint
