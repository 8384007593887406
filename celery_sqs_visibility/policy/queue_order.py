"""Turns of queues: strict, weighted or fair."""

from __future__ import annotations

from collections.abc import Collection

from celery_sqs_visibility.policy.options import OptionsOfQueue, Order


class QueueOrder:
    """Chooses the queue whose message runs next. Not thread-safe: its owner locks.

    Queues of the same rank share the turns by smooth weighted round robin, like nginx: at each turn every
    queue gains credit by its weight; the queue with the most credit gets the turn and pays what all have
    gained. A queue without messages loses its credit, so a pause earns no burst. A queue of weight `w` among
    queues of total weight `W` waits at most `W / w` plus the number of queues, rounded up, turns.
    """

    def __init__(self, order: Order, options_of: OptionsOfQueue) -> None:
        self.order = order
        self._options_of = options_of
        self._credits: dict[str, int] = {}
        self._queues: set[str] = set()
        self._before_last: frozenset[str] = frozenset()  # the queues whose rank is not the last

    def add(self, queue: str) -> None:
        """Add a queue that is consumed. Idempotent."""
        self._queues.add(queue)
        last = max(map(self.rank, self._queues))
        self._before_last = frozenset(each for each in self._queues if self.rank(each) < last)

    def rank(self, queue: str) -> int:
        """The queue's place in the option `queues` under "strict", otherwise 0. The lowest goes first."""
        return self._options_of(queue).place if self.order == "strict" else 0

    def overtakes(self, queue: str) -> bool:
        """Returns whether the queue's messages may run before older ones of another queue."""
        if self.order == "strict":
            return queue in self._before_last
        return self.order == "weighted" and len(self._queues) > 1

    def overtakers(self, queue: str) -> frozenset[str]:
        """The queues that may overtake this one; none if it may overtake another itself."""
        return frozenset() if queue in self._before_last else self._before_last

    def next(self, waiting: Collection[str]) -> str:
        """Choose among queues with waiting messages, at least one."""
        if self.order == "strict":
            first = min(map(self.rank, waiting))
            waiting = [queue for queue in waiting if self.rank(queue) == first]
        credit, gained = {}, 0
        for queue in waiting:
            weight = self._weight(queue)
            gained += weight
            credit[queue] = self._credits.get(queue, 0) + weight
        turn = max(credit, key=credit.__getitem__)
        credit[turn] -= gained
        self._credits = credit
        return turn

    def _weight(self, queue: str) -> int:
        return self._options_of(queue).weight if self.order == "weighted" else 1
