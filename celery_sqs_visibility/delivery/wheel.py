"""Which deliveries are to be extended when, so that they share requests."""

from __future__ import annotations

import math

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: How many slots the time from one extension to the next is cut into: deliveries of one slot are extended
#: together.
SLOTS = 4

#: An extension that failed is tried again at multiples of this many seconds, so that retries share requests.
RETRY_GRAIN = 0.25

#: How many later deliveries are looked at to fill up a batch.
FILL_LOOKAHEAD = 200


class ExtensionWheel:
    """Deliveries by the slot of time in which they are to be extended. Not thread-safe: the ledger locks.

    A slot falls due as a whole, at its beginning. Where its last batch has room, deliveries of later slots
    are taken along: their extension then costs nothing, and from there on they share a slot.

    Args:
        interval: seconds before or after which deliveries are extended again, whichever is less: a slot must
            be shorter, or what was just extended would be due at once.
    """

    def __init__(self, interval: float) -> None:
        self._grain = interval / SLOTS
        self._slots: dict[float, dict[Delivery, None]] = {}  # by the instant at which they fall due

    def add(self, delivery: Delivery, at: float) -> None:
        """Extend it at that monotonic instant, or up to a slot earlier."""
        self._put(delivery, math.floor(at / self._grain) * self._grain)

    def add_not_before(self, delivery: Delivery, at: float) -> None:
        """Extend it at that monotonic instant, or a moment later."""
        self._put(delivery, math.ceil(at / RETRY_GRAIN) * RETRY_GRAIN)

    def remove(self, delivery: Delivery) -> None:
        """Do not extend it; harmless if it is not here."""
        members = self._slots.get(delivery.slot) if delivery.slot is not None else None
        if members is not None and delivery.slot is not None:
            members.pop(delivery, None)
            if not members:
                del self._slots[delivery.slot]
        delivery.slot = None

    def next_due(self) -> float | None:
        """The instant at which the earliest slot falls due."""
        return min(self._slots, default=None)

    def take_due(self, now: float) -> dict[Queue, list[Delivery]]:
        """Take out what is due, and what fills up its batches."""
        due: dict[Queue, list[Delivery]] = {}
        for slot in sorted(slot for slot in self._slots if slot <= now):
            for delivery in self._slots.pop(slot):
                delivery.slot = None
                due.setdefault(delivery.queue, []).append(delivery)
        if due:
            self._fill_up(due)
        return due

    def _put(self, delivery: Delivery, slot: float) -> None:
        delivery.slot = slot
        self._slots.setdefault(slot, {})[delivery] = None

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
