"""Turns of queues: strict, weighted or fair."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from celery_sqs_visibility.policy.options import OptionsOfQueue

#: The option `queue_order`: as messages come; a queue before all that are listed after it; by weight.
Order = Literal["fair", "strict", "weighted"]

ORDERS: Final = ("fair", "strict", "weighted")


class QueueOrder:
    """Gives turns to queues that have messages waiting. Not thread-safe: its owner locks.

    Queues of the same rank share the turns by smooth weighted round robin, as nginx does: at each turn every
    queue gains credit by its weight, and the one with the most has the turn, and pays all that was gained. A
    queue's credit lasts while it has messages. So a queue of weight `w` among queues of weight `W` in all has
    a turn among any `W / w` plus the number of queues, rounded up; and a rest earns no burst.
    """

    def __init__(self, order: Order, options_of: OptionsOfQueue) -> None:
        self.order = order
        self._options_of = options_of
        self._credits: dict[str, int] = {}
        self._queues: set[str] = set()
        self._before_last: frozenset[str] = frozenset()  # those of them whose rank is not the last

    def add(self, queue: str) -> None:
        """Add a queue that is consumed; harmless if it is known."""
        self._queues.add(queue)
        last = max(map(self.rank, self._queues))
        self._before_last = frozenset(each for each in self._queues if self.rank(each) < last)

    def rank(self, queue: str) -> int:
        """Under "strict" the queue's place in the option `queues`: the lowest goes first."""
        return self._options_of(queue).place if self.order == "strict" else 0

    def overtakes(self, queue: str) -> bool:
        """Whether a message of the queue may be run before one of another queue that came first."""
        if self.order == "strict":
            return queue in self._before_last
        return self.order == "weighted" and len(self._queues) > 1

    def overtakers(self, queue: str) -> frozenset[str]:
        """The queues that may overtake this one, if it may overtake none."""
        return frozenset() if queue in self._before_last else self._before_last

    def next(self, waiting: Collection[str]) -> str:
        """The queue whose turn it is, of one or more that have messages waiting."""
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
