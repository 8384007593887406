"""Messages that are held, and that nothing in this process will ever run or give back.

There should be none. Where memory lacks, any line may be its function's last, in Celery and in Python's pool
of threads, too: a message then keeps its place or is extended for ever. One whose request is gone, or whose
run in a pool of threads is, is given back. Places that are taken while nothing is held and no poll is in
flight are free again. What else there is cannot be named: a worker that has only such messages is not live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS

#: Looks in a row that found nothing held and nothing under way: longer than any thread is between two lines.
QUIET_LOOKS: Final = 10


class ForgottenMessages:
    """Sees that all messages are forgotten ones, from look to look of the supervisor, in its thread.

    A message that is just being decoded or settled is in nobody's hands either, for a moment. So it takes a
    while in which nothing runs, nothing is handed to Celery, and each look finds one.

    Args:
        ledger: the deliveries that are held.
        capacity: how many messages take places, and runs whose messages were settled when they began.
        polling: whether a poll is in flight.
        handed: how many messages Celery was given so far.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity: ReceiveCapacity,
        polling: Callable[[], bool],
        handed: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._capacity = capacity
        self._polling = polling
        self._handed = handed
        self._handed_before = 0
        self._dropped_before: set[Delivery] = set()
        self._looks = 0  # in a row that found one; a machine that sleeps does not look
        self._quiet_looks = 0  # in a row that found nothing held, and nothing under way

    @property
    def seconds(self) -> float:
        """For how long there have been none but forgotten messages; 0 where there are none. Any thread."""
        return self._looks * CHECK_INTERVAL_SECONDS

    def replace_stuck(self, _now: float) -> None:
        """See `supervisor.Supervised`: gives back messages whose request, or run, two looks found gone."""
        held = self._ledger.all()
        if held or self._dropped_before:
            self._give_back_dropped(held)
        before, self._handed_before = self._handed_before, self._handed()
        still = self._handed_before == before
        self._looks = self._looks + 1 if still and self._are_there(held) else 0
        self._quiet_looks = self._quiet_looks + 1 if still and self._is_quiet(held) else 0
        if self._quiet_looks > QUIET_LOOKS:
            self._capacity.count_nothing()
            self._quiet_looks = 0

    def _give_back_dropped(self, held: Sequence[Delivery]) -> None:
        dropped = {delivery for delivery in held if delivery.is_dropped}
        for delivery in dropped & self._dropped_before:
            delivery.come_back(RuntimeError("its run was dropped, unreported"))
        self._dropped_before = dropped

    def _is_quiet(self, held: Sequence[Delivery]) -> bool:
        return not (held or self._polling() or self._capacity.runs)

    def _are_there(self, held: Sequence[Delivery]) -> bool:
        places = self._capacity.held
        if not places and not held:
            return False
        if self._capacity.runs or any(delivery.started or delivery.dispatched for delivery in held):
            return False
        return places > len(held) or any(not (each.in_hand or each.claimed) for each in held)
