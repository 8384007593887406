"""Watches over held messages: runs without a sign of life, and forgotten messages.

A message should never be held if nothing in this process will run it or give it back. But if memory lacks,
any line may be the last of its function, also in Celery and in Python's pool of threads. A message would then
keep its place or be extended for ever. So a message is given back if nothing is left that would settle it:
its request, or its run in a pool of threads, is gone, or it never reached the buffer. If a message cannot be
given back, and nothing else is under way, the worker is not live.
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

#: Looks in a row that find a message dropped: longer than any thread takes from one line to the next.
ENOUGH_LOOKS: Final = 10

#: Garbage is collected once after this many looks in a row with messages and without a hand-over. A thread
#: that dies for lack of memory may leave its run in a cycle of tracebacks, which an idle process never
#: collects.
GARBAGE_LOOKS: Final = 40


class RunWatch:
    """Looks at running deliveries at each check of the supervisor, in its thread.

    If an inactive run is ended just as it ends by itself, the holder lets only one of both settle the
    delivery.
    """

    def __init__(self, held: Callable[[], Sequence[Delivery]], holder: DeliveryHolder) -> None:
        self._held = held
        self._holder = holder
        self._checked = math.inf
        self._awake_since = 0.0
        # The horizon about which there was a warning, by delivery.
        self._warned: WeakKeyDictionary[Delivery, float] = WeakKeyDictionary()

    def replace_stuck(self, now: float) -> None:
        """Check everything that runs at that monotonic instant."""
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
            except Exception:  # noqa: BLE001 - it is logged; the others are to be checked, too
                log_safely(logger.exception, "an inactive run could not be ended, and goes on")


class ForgottenMessages:
    """Finds out whether only forgotten messages are left, at each check of the supervisor, in its thread.

    A message that is just being decoded or settled belongs to nobody for a moment, too. So messages count as
    forgotten only after a while in which nothing runs, nothing is handed to Celery, and each look finds one.

    Args:
        held: returns the held deliveries; those of this capacity count.
        capacity: knows how many messages Celery was given, and which runs outlast their messages.
    """

    def __init__(self, held: Callable[[], Sequence[Delivery]], capacity: Capacity) -> None:
        self._held = held
        self._capacity = capacity
        self._handed_before = 0
        self._dropped: dict[Delivery, int] = {}  # how many looks in a row found it so
        self._looks = 0  # in a row that found one; not by time, as a machine may sleep
        self._idle_looks = 0  # in a row that found something held, and nothing handed over

    @property
    def seconds(self) -> float:
        """For how long there have been only forgotten messages, and at least one. Any thread."""
        return self._looks * CHECK_INTERVAL_SECONDS

    def replace_stuck(self, _now: float) -> None:
        """Look once, and give back messages that enough looks found dropped."""
        if held := self._held():
            held = [each for each in held if getattr(each.consumer, "capacity", None) is self._capacity]
        if held or self._dropped:
            self._give_back_dropped(held)
        before, self._handed_before = self._handed_before, self._capacity.handed
        still = self._handed_before == before
        self._idle_looks = self._idle_looks + 1 if still and held else 0
        if self._idle_looks == GARBAGE_LOOKS:
            gc.collect()
        self._looks = self._looks + 1 if still and self._are_there(held) else 0

    def _give_back_dropped(self, held: Sequence[Delivery]) -> None:
        before = self._dropped
        self._dropped = {each: before.get(each, 0) + 1 for each in held if each.is_dropped}
        for delivery, looks in self._dropped.items():
            if looks > ENOUGH_LOOKS:
                delivery.come_back(RuntimeError("its run was dropped, unreported"))

    def _are_there(self, held: Sequence[Delivery]) -> bool:
        if (
            not held
            or self._capacity.runs
            or any(each.state in {State.DISPATCHED, State.RUNNING} for each in held)
        ):
            return False
        return any(each.state is State.HELD and not each.attended for each in held)
