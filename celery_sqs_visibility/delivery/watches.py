"""Watches over held messages: runs without a sign of life, and forgotten messages.

A message should never be held if nothing in this process will run it or give it back. But when memory runs
out, any line may be the last of its function, in Celery and in Python's thread pool, too. A message would
then keep its place or be extended for ever. So a message is given back if nothing is left that would settle
it: its request, or its run in a thread pool, is gone, or it never reached the buffer. If a message can't be
given back and nothing else is in progress, the worker reports that it is not live.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from celery_sqs_visibility.core.capacity import Capacity
from celery_sqs_visibility.core.delivery import Delivery, State
from celery_sqs_visibility.delivery.holder import DeliveryHolder
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS
from celery_sqs_visibility.events import HorizonNear, emit, log_safely
from celery_sqs_visibility.policy.run_limits import (
    NEAR_HORIZON_SECONDS,
    is_inactive,
    latest_wake,
    until_horizon,
)

logger = logging.getLogger(__name__)

#: Consecutive checks that must find a message dropped: longer than any thread takes from one line to the
#: next.
ENOUGH_CHECKS: Final = 10

#: Garbage is collected once after this many consecutive checks with messages and without a hand-over. A
#: thread that dies of a MemoryError may leave its run in a cycle of tracebacks, which an idle process never
#: collects.
GARBAGE_CHECKS: Final = 40


class RunWatch:
    """Checks running deliveries, each time the supervisor checks, in its thread.

    If an inactive run is ended just as it ends by itself, the holder lets only one of the two settle it.
    """

    def __init__(self, held: Callable[[], Sequence[Delivery]], holder: DeliveryHolder) -> None:
        self._held = held
        self._holder = holder
        self._checked = math.inf
        self._awake_since = 0.0
        # By delivery, the horizon that was last warned about.
        self._warned: WeakKeyDictionary[Delivery, float] = WeakKeyDictionary()

    def replace_stuck(self, now: float) -> None:
        """Check all runs at that monotonic instant."""
        self._awake_since = latest_wake(self._awake_since, self._checked, now)
        self._checked = now
        for delivery in self._held():
            if delivery.began is None:
                continue
            if until_horizon(delivery.horizon, now) <= NEAR_HORIZON_SECONDS:
                self._warn(delivery, now)
            if delivery.inactivity is not None:
                self._end_if_inactive(delivery, now)

    def _warn(self, delivery: Delivery, now: float) -> None:
        if self._warned.get(delivery) != delivery.horizon:
            self._warned[delivery] = delivery.horizon
            emit(HorizonNear(delivery.facts, until_horizon(delivery.horizon, now)))

    def _end_if_inactive(self, delivery: Delivery, now: float) -> None:
        lease, inactivity = delivery.lease, delivery.inactivity
        if lease is None or inactivity is None or (last_sign := lease.last_sign) in {UNWATCHED, INACTIVE}:
            return
        silent = is_inactive(last_sign, inactivity.timeout, self._awake_since, now)
        if silent and self._holder.tell_inactive(delivery):
            try:
                inactivity.end_run()
            except Exception:  # noqa: BLE001 - it is logged; the others must be checked, too
                log_safely(logger.exception, "an inactive run could not be ended, and goes on")


class ForgottenMessages:
    """Finds out whether only forgotten messages are held, each time the supervisor checks, in its thread.

    A message that is just being decoded or settled also belongs to nobody for a moment. So messages count as
    forgotten only after a while in which nothing runs, nothing is handed to Celery, and every check finds
    one.

    Args:
        held: returns the held deliveries; only those of this capacity count.
        capacity: counts the messages handed to Celery, and the runs that outlast their messages.
    """

    def __init__(self, held: Callable[[], Sequence[Delivery]], capacity: Capacity) -> None:
        self._held = held
        self._capacity = capacity
        self._handed_before = 0
        self._dropped: dict[Delivery, int] = {}  # by message, the consecutive checks that found it dropped
        self._checks = 0  # consecutive checks that found one; not by time, because a machine may sleep
        self._idle_checks = 0  # consecutive checks with held messages and no hand-over

    @property
    def seconds(self) -> float:
        """For how long only forgotten messages were held, and at least one. Any thread."""
        return self._checks * CHECK_INTERVAL_SECONDS

    def replace_stuck(self, _now: float) -> None:
        """Check once, and give back messages that enough checks found dropped."""
        if held := self._held():
            held = [each for each in held if getattr(each.consumer, "capacity", None) is self._capacity]
        if held or self._dropped:
            self._give_back_dropped(held)
        before, self._handed_before = self._handed_before, self._capacity.handed
        if not held or self._handed_before != before:
            self._idle_checks = self._checks = 0
            return
        self._idle_checks += 1
        if self._idle_checks == GARBAGE_CHECKS:
            gc.collect()
        self._checks = self._checks + 1 if self._some_are_forgotten(held) else 0

    def _give_back_dropped(self, held: Sequence[Delivery]) -> None:
        before = self._dropped
        self._dropped = {each: before.get(each, 0) + 1 for each in held if each.is_dropped}
        for delivery, checks in self._dropped.items():
            if checks > ENOUGH_CHECKS:
                delivery.come_back(RuntimeError("its run was dropped, unreported"))

    def _some_are_forgotten(self, held: Sequence[Delivery]) -> bool:
        if self._capacity.runs or any(each.state in {State.DISPATCHED, State.RUNNING} for each in held):
            return False
        return any(each.state is State.HELD and not each.attended for each in held)
