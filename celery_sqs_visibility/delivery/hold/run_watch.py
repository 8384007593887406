"""Notices runs that show no life, and runs whose message cannot be extended for much longer."""

from __future__ import annotations

import logging
import math
from weakref import WeakSet

from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.lease import INACTIVE, UNWATCHED
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.events import HorizonNear, emit, log_safely
from celery_sqs_visibility.policy.run_limits import is_inactive, is_near_horizon, latest_wake, until_horizon

logger = logging.getLogger(__name__)


class RunWatch:
    """Checks what runs, whenever the supervisor does: see `supervisor.Supervised`. Its thread alone.

    Who ends an inactive run is settled as for any other end: the ledger lets one settle its delivery.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._checked = math.inf
        self._awake_since = 0.0
        self._warned: WeakSet[Delivery] = WeakSet()  # those that are near their horizon

    def replace_stuck(self, now: float) -> None:
        """Check everything that runs at that monotonic instant."""
        self._awake_since = latest_wake(self._awake_since, self._checked, now)
        self._checked = now
        for delivery in self._ledger.all():
            if delivery.began is None:
                continue
            if is_near_horizon(delivery.horizon, now):
                self._warn(delivery, now)
            if delivery.inactivity is not None:
                self._end_if_inactive(delivery, now)

    def _warn(self, delivery: Delivery, now: float) -> None:
        if delivery not in self._warned:
            self._warned.add(delivery)
            emit(HorizonNear(delivery.facts, until_horizon(delivery.horizon, now)))

    def _end_if_inactive(self, delivery: Delivery, now: float) -> None:
        lease, inactivity = delivery.lease, delivery.inactivity
        if lease is None or inactivity is None or (last_sign := lease.last_sign) in {UNWATCHED, INACTIVE}:
            return
        silent = is_inactive(last_sign, inactivity.timeout, self._awake_since, now)
        if silent and self._ledger.tell_inactive(delivery):
            try:
                inactivity.end_run()
            except Exception:  # noqa: BLE001 - it is logged; the others are to be checked, too
                log_safely(logger.exception, "an inactive run could not be ended, and goes on")
