"""Which deliveries are to be extended when, so that they share requests."""

from __future__ import annotations

import math

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: How many slots a heartbeat interval is cut into: deliveries of one slot are extended together.
SLOTS_PER_INTERVAL = 4

#: How many later deliveries are looked at to fill up a batch.
FILL_LOOKAHEAD = 200


class ExtensionWheel:
    """Deliveries by the slot of time in which they are to be extended. Not thread-safe: the ledger locks.

    A slot falls due as a whole, at its beginning. Where its last batch has room, deliveries of later slots
    are taken along: their extension then costs nothing, and from there on they share a slot.

    Args:
        interval: how long before its deadline a delivery is extended, in seconds.
    """

    def __init__(self, interval: float) -> None:
        self._grain = interval / SLOTS_PER_INTERVAL
        self._slots: dict[int, dict[Delivery, None]] = {}

    def add(self, delivery: Delivery, at: float) -> None:
        """Extend it at that monotonic instant, or up to a slot earlier."""
        slot = math.floor(at / self._grain)
        delivery.slot = slot
        self._slots.setdefault(slot, {})[delivery] = None

    def remove(self, delivery: Delivery) -> None:
        """Do not extend it; harmless if it is not here."""
        if delivery.slot is None:
            return
        members = self._slots.get(delivery.slot)
        if members is not None:
            members.pop(delivery, None)
            if not members:
                del self._slots[delivery.slot]
        delivery.slot = None

    def next_due(self) -> float | None:
        """The instant at which the earliest slot falls due."""
        return min(self._slots) * self._grain if self._slots else None

    def take_due(self, now: float) -> dict[Queue, list[Delivery]]:
        """Take out what is due, and what fills up its batches."""
        due: dict[Queue, list[Delivery]] = {}
        for slot in sorted(slot for slot in self._slots if slot * self._grain <= now):
            for delivery in self._slots.pop(slot):
                delivery.slot = None
                due.setdefault(delivery.queue, []).append(delivery)
        if due:
            self._fill_up(due)
        return due

    def _fill_up(self, due: dict[Queue, list[Delivery]]) -> None:
        room = {queue: -len(batch) % BATCH_ENTRIES for queue, batch in due.items()}
        for delivery in self._following(FILL_LOOKAHEAD):
            if room.get(delivery.queue):
                room[delivery.queue] -= 1
                self.remove(delivery)
                due[delivery.queue].append(delivery)

    def _following(self, most: int) -> list[Delivery]:
        following: list[Delivery] = []
        for slot in sorted(self._slots):
            following.extend(self._slots[slot])
            if len(following) >= most:
                break
        return following[:most]
