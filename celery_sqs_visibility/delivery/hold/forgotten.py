"""Messages that are held, and that nothing in this process will ever run or give back.

There should be none. Where memory lacks, any line may be its function's last, in Celery and in Python's pool
of threads, too: a message then keeps its place or is extended for ever. One whose request is gone, or whose
run in a pool of threads is, is given back. What else there is cannot be named: a worker that has only such
messages is not live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS


class ForgottenMessages:
    """Sees that all messages are forgotten ones, from look to look of the supervisor, in its thread.

    A message that is just being decoded or settled is in nobody's hands either, for a moment. So it takes a
    while in which nothing runs, nothing is handed to Celery, and each look finds one.

    Args:
        ledger: the deliveries that are held.
        places: how many messages take capacity.
        runs: how many runs there are whose messages were settled when they began.
        handed: how many messages Celery was given so far.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Callable[[], int],
        runs: Callable[[], int],
        handed: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._runs = runs
        self._handed = handed
        self._handed_before = 0
        self._dropped_before: set[Delivery] = set()
        self._looks = 0  # in a row that found one; a machine that sleeps does not look

    @property
    def seconds(self) -> float:
        """For how long there have been none but forgotten messages; 0 where there are none. Any thread."""
        return self._looks * CHECK_INTERVAL_SECONDS

    def replace_stuck(self, _now: float) -> None:
        """See `supervisor.Supervised`: gives back messages whose request, or run, two looks found gone."""
        held = self._ledger.all()
        dropped = {delivery for delivery in held if delivery.is_dropped}
        for delivery in dropped & self._dropped_before:
            delivery.come_back(RuntimeError("its run was dropped, unreported"))
        self._dropped_before = dropped
        before, self._handed_before = self._handed_before, self._handed()
        self._looks = self._looks + 1 if self._handed_before == before and self._are_there(held) else 0

    def _are_there(self, held: Sequence[Delivery]) -> bool:
        places = self._places()
        if not places and not held:
            return False
        if self._runs() or any(delivery.started or delivery.dispatched for delivery in held):
            return False
        return places > len(held) or any(not (each.in_hand or each.claimed) for each in held)
