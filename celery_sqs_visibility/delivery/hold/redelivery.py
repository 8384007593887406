"""Messages that come back to the process that has them, or is done with them."""

from __future__ import annotations

import enum
import threading

from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.recent_keys import RecentKeys
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

#: How many finished messages are remembered at the most: those of two minutes at 2,500 a second, in less than
#: 100 MB.
REMEMBERED = 300_000

#: Seconds for which a finished message is remembered beyond the time at which it comes back.
MARGIN = 60

#: A message: its queue's URL and its id.
Key = tuple[str, str]


class Met(enum.Enum):
    """What a message that arrives is to this process."""

    NEW = "not known"
    HELD = "held here under an older handle"
    FINISHED = "finished here before"


class RedeliveryIndex:
    """Knows which messages this process holds, and which it finished lately. Any thread; does no I/O.

    A message comes back to its holder when its visibility timeout ran out, or because standard queues deliver
    at least once. The newest handle is the only one that counts.

    Args:
        visibility_timeout: seconds; what was finished is remembered for longer than that.
        clock: the monotonic clock of the deadlines.
    """

    def __init__(self, visibility_timeout: float, clock: Clock = SYSTEM_CLOCK) -> None:
        # Guards _held. Reentrant: Celery's cold shutdown settles in a signal handler, on a thread that may be
        # here just now.
        self._lock = threading.RLock()
        self._held: dict[Key, Delivery] = {}
        self._finished: RecentKeys[Key] = RecentKeys(REMEMBERED, visibility_timeout + MARGIN, clock)

    def meet(self, delivery: Delivery) -> Met:
        """It has arrived, and its ledger holds it: a delivery of what is held here takes that one's place."""
        key = _key(delivery)
        with self._lock:
            held = self._held.get(key)
            self._held[key] = delivery
        if held is not None and held.supersede(delivery):
            return Met.HELD
        return Met.FINISHED if key in self._finished else Met.NEW

    def finish(self, delivery: Delivery) -> None:
        """It is done and to be deleted; told before its ledger lets go of it.

        If the deletion fails, it comes back when its visibility lapses, which may be hours away where its
        task asked for that; an extension in flight may put that off by a visibility timeout.
        """
        self._finished.add(_key(delivery), until=delivery.deadline + MARGIN)

    def let_go(self, delivery: Delivery) -> None:
        """It was settled."""
        key = _key(delivery)
        with self._lock:
            if self._held.get(key) is delivery:
                del self._held[key]


def _key(delivery: Delivery) -> Key:
    return delivery.queue.url, delivery.facts.message_id
