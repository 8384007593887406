"""Messages that are held and extended, though nothing can be done with them now: they take no capacity."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity

#: Each costs a heartbeat. Where more wait, the others keep their capacity, so that no more are received.
MOST_SET_ASIDE: Final = 200


class SetAside:
    """The deliveries whose capacity others have; `holds` is the ledger's. Safe to use from any thread."""

    def __init__(self, capacity: ReceiveCapacity, holds: Callable[[Delivery], bool]) -> None:
        self._capacity = capacity
        self._holds = holds
        # Guards _deliveries. Reentrant: Celery's cold shutdown settles in a signal handler.
        self._lock = threading.RLock()
        self._deliveries: set[Delivery] = set()

    def add(self, delivery: Delivery) -> None:
        """Give its capacity to others, as long as it is held; harmless if they have it."""
        with self._lock:
            if delivery in self._deliveries or len(self._deliveries) >= MOST_SET_ASIDE:
                return
            # First: a settlement takes it out of the ledger, and then looks here.
            self._deliveries.add(delivery)
            if not self._holds(delivery):
                self._deliveries.discard(delivery)
                return
        self._capacity.release(queue=delivery.queue.name, fifo=delivery.queue.fifo)

    def has_place(self, delivery: Delivery) -> bool:
        """Whether it has its capacity, or may take it again: no more is held than may be."""
        with self._lock:
            if delivery not in self._deliveries:
                return True
        return not self._capacity.overdrawn

    def remove(self, delivery: Delivery) -> None:
        """It takes capacity again, though there may be none left; harmless if it does already."""
        if delivery not in self._deliveries:
            return
        with self._lock:
            if delivery not in self._deliveries:
                return
            self._deliveries.remove(delivery)
        self._capacity.hold(1, queue=delivery.queue.name, fifo=delivery.queue.fifo)
