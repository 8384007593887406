"""Index of the messages that this process holds or has held, by which it knows redeliveries."""

from __future__ import annotations

import enum
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

K = TypeVar("K", bound=Hashable)

#: A finished message is remembered for this long after it can come back.
MARGIN_SECONDS = 60

#: Keys whose time is over are dropped this often, at most.
DROP_SECONDS: Final = 1.0


class RecentKeys(Generic[K]):
    """The latest keys, each for some time. Safe to use from any thread.

    Args:
        most: keys that are kept; the oldest make room.
        seconds: how long each is kept, while there are no more than `most`.
        clock: the monotonic clock.
    """

    def __init__(self, most: int, seconds: float = math.inf, clock: Clock = SYSTEM_CLOCK) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        # Guards everything below. Reentrant, for Celery's cold shutdown settles messages in a signal handler,
        # which may interrupt `add` on the main thread.
        self._lock = threading.RLock()
        self._keys: OrderedDict[K, float] = OrderedDict()  # until which instant each is kept
        self._drop_at = 0.0

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: K, until: float = 0.0) -> bool:
        """Keep a key until the monotonic instant `until`, if that is later than usual; whether it is new."""
        now = self._clock.monotonic()
        keys = self._keys
        with self._lock:
            new = key not in keys
            keys[key] = max(now + self._seconds, until)
            if not new:
                keys.move_to_end(key)
            if now >= self._drop_at or len(keys) > self._most:
                self._drop(now)
            return new

    def _drop(self, now: float) -> None:
        self._drop_at = now + DROP_SECONDS
        keys = self._keys
        while keys and (len(keys) > self._most or next(iter(keys.values())) < now):
            keys.popitem(last=False)


class Arrival(enum.Enum):
    """State of a message that arrives, as this process knows it."""

    NEW = "neither held nor finished here"
    HELD = "held here under an older handle"
    OUTDATED = "held here under a newer handle, and lapsed before it arrived"
    FINISHED = "finished here before"


class Past(enum.Enum):
    """End of a message that this process does not hold any more; the value is the number to remember.

    Where memory decides whether a message runs twice, the figure is out of reach: 300,000 finished messages
    are those of two minutes at 2,500 a second, in less than 100 MB. Memory of rejected and kept ones only
    saves log lines.
    """

    FINISHED = 300_000
    UNDELETED = 200_000
    GIVEN_UP = 100_000
    REJECTED = 10_000
    KEPT = 20_000


class RedeliveryIndex:
    """Messages by queue and id. Any thread; does no I/O.

    A message comes back to its holder when its visibility timeout ran out, or because standard queues deliver
    at least once. Only the newest handle counts.

    Args:
        visibility_timeout: seconds; finished messages are remembered for longer than that.
        clock: the monotonic clock of the deadlines.

    Attributes:
        lock: also guards the ledgers that share the index: a delivery may take the place of another ledger's.
            Reentrant: Celery's cold shutdown settles in a signal handler, on a thread that may be here.
    """

    def __init__(self, visibility_timeout: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.lock = threading.RLock()
        # Guarded by it where a message has another delivery there.
        self._held: dict[tuple[str, str], Delivery] = {}
        # A message that is given up and kept comes back within 12 hours, each time; one that could not be
        # deleted once SQS answers again.
        seconds = {
            Past.FINISHED: visibility_timeout + MARGIN_SECONDS,
            Past.UNDELETED: VISIBILITY_HORIZON_SECONDS,
            Past.GIVEN_UP: VISIBILITY_HORIZON_SECONDS,
        }
        self._clock = clock
        self._past: dict[Past, RecentKeys[tuple[str, str]]] = {
            past: RecentKeys(past.value, seconds.get(past, math.inf), clock) for past in Past
        }
        self._finished = self._past[Past.FINISHED]
        self._undeleted = self._past[Past.UNDELETED]
        self._given_up = self._past[Past.GIVEN_UP]
        self._kept = self._past[Past.KEPT]

    def check(self, delivery: Delivery) -> Arrival:
        """It has arrived, and its ledger holds it: it supersedes an older delivery that is held.

        It does not if it has lapsed before that one does: its answer came while the process was stopped, say.
        """
        key = delivery.message_key
        if (held := self._held.setdefault(key, delivery)) is not delivery:  # one step, which needs no lock
            if delivery.deadline <= self._clock.monotonic() and delivery.deadline < held.deadline:
                return Arrival.OUTDATED
            with self.lock:
                older = self._held.get(key)
                self._held[key] = delivery
            if older is not None and older.supersede(delivery):
                return Arrival.HELD
        finished = key in self._finished or key in self._undeleted
        return Arrival.FINISHED if finished else Arrival.NEW

    def remove(self, delivery: Delivery) -> None:
        """It was settled, and its message is kept."""
        key = delivery.message_key
        self._kept.add(key)
        with self.lock:
            if self._held.get(key) is delivery:
                del self._held[key]

    def finish(self, delivery: Delivery) -> None:
        """It is done and to be deleted, and not held any more; called before its ledger lets go of it.

        If it comes back from here on, it is deleted, and supersedes nothing.

        If the deletion fails, it comes back when its visibility lapses, which may be hours away where its
        task asked for that; an extension in flight may put that off by a visibility timeout.
        """
        key = delivery.message_key
        with self.lock:
            self._finished.add(key, delivery.deadline + MARGIN_SECONDS)
            if self._held.get(key) is delivery:
                del self._held[key]

    def was_given_up(self, delivery: Delivery) -> bool:
        """Whether its message was given up before."""
        return delivery.message_key in self._given_up

    def remember(self, past: Past, queue: Queue, message_id: str) -> bool:
        """Note the end of a message; whether it is new."""
        return self._past[past].add((queue.url, message_id))

    def remembers(self, past: Past, queue: Queue, message_id: str) -> bool:
        """Whether the message has had that end before."""
        return (queue.url, message_id) in self._past[past]
