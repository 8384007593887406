"""Turns of a worker's queues: Celery gets a message when there is a slot for it, in the queues' order.

Celery runs messages in the order in which it gets them. So a message that may be overtaken stays in the
buffer until it can start.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from weakref import WeakSet, WeakValueDictionary

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.policy.options import OptionsOfQueue, Order
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.policy.queue_order import QueueOrder


class Turns:
    """Messages given to Celery whose runs have not ended, and the next turn. One for a process.

    Args:
        order: the option `queue_order`.
        options_of: of a queue, whose `weight` and `max_running` count.

    Attributes:
        slots: the process's.
    """

    def __init__(self, order: Order, options_of: OptionsOfQueue) -> None:
        self._options_of = options_of
        self._order = QueueOrder(order, options_of)
        # By queue that was consumed at some time, and by message. A run that nobody refers to any more has no
        # slot.
        self._begun: dict[str, WeakValueDictionary[tuple[str, str], Delivery]] = {}
        # Those of them that wait for their ETA or their rate limit, and do not run.
        self._resting: WeakValueDictionary[tuple[str, str], Delivery] = WeakValueDictionary()
        # Messages held of each queue, and runs whose messages were settled when they began, by all consumers
        # of the process: an earlier connection's runs count.
        self._held: Counter[str] = Counter()
        self._runs: defaultdict[str, WeakSet[Delivery]] = defaultdict(WeakSet)
        # The option `max_running` of each queue that has it.
        self._most: dict[str, int] = {}
        self.slots: Callable[[], Slots] | None = None

    def add_queue(self, queue: str) -> None:
        """It is consumed from now on; harmless if it is already."""
        if queue in self._begun:
            return
        self._order.add(queue)
        self._begun[queue] = WeakValueDictionary()
        if (most := self.max_running(queue)) is not None:
            self._most[queue] = most

    def next(self, waiting: Collection[str]) -> str | None:
        """The queue whose turn it is; `None` if there is no slot for any."""
        startable = self._startable(waiting)
        return self._order.next(startable) if startable else None

    def may_start(self, waiting: Collection[str]) -> bool:
        """Whether there is a slot for a message of any of these queues."""
        return bool(self._startable(waiting))

    def begin(self, delivery: Delivery) -> None:
        """It goes to Celery."""
        queue = delivery.queue.name
        self.add_queue(queue)
        self._begun[queue][delivery.message_key] = delivery

    def end(self, delivery: Delivery) -> None:
        """It is settled, and does not run; harmless if it never began."""
        if (of_queue := self._begun.get(delivery.queue.name)) is not None:
            of_queue.pop(delivery.message_key, None)
        if self._resting:
            self._resting.pop(delivery.message_key, None)

    def rest(self, delivery: Delivery) -> None:
        """Celery holds it for its ETA or its rate: it takes no slot, but counts for its queue."""
        of_queue = self._begun.get(delivery.queue.name)
        if of_queue is not None and (begun := of_queue.get(delivery.message_key)) is not None:
            self._resting[delivery.message_key] = begun

    def resume(self, delivery: Delivery) -> None:
        """Its time has come; harmless if it did not rest."""
        self._resting.pop(delivery.message_key, None)

    def hold(self, queue: str, messages: int) -> None:
        """This number of messages more is held of the queue."""
        self._held[queue] += messages

    def recount(self, queues: Iterable[str]) -> None:
        """The queues of all messages that are held."""
        self._held = Counter(queues)

    def start_run(self, run: Delivery) -> None:
        """A run goes on whose message was settled."""
        self._runs[run.queue.name].add(run)

    def end_run(self, run: Delivery) -> None:
        """It has ended."""
        self._runs[run.queue.name].discard(run)

    def held(self, queue: str) -> int:
        """How many of the queue's messages are held, or run. Any thread."""
        return self._held[queue] + len(self._runs.get(queue, ()))

    def rank(self, queue: str) -> int:
        """The order in which queues that wait for capacity are served."""
        return self._order.rank(queue)

    def begun(self, queue: str) -> int:
        """How many of the queue's messages Celery has."""
        return len(self._begun.get(queue, ()))

    def max_running(self, queue: str) -> int | None:
        """The queue's option."""
        return self._options_of(queue).max_running

    def is_full(self, queue: str) -> bool:
        """Whether the process holds as many messages of the queue as `max_running` lets it. Any thread."""
        return self.own_share(queue, 0).get("room") == 0

    def overtakes(self, queue: str) -> bool:
        """Whether a message of the queue may be run before others that came first."""
        return self._runnable() is not None and self._order.overtakes(queue)

    def overtakers(self, queue: str) -> frozenset[str]:
        """The queues that may overtake this one, if it may overtake none."""
        return frozenset() if self._runnable() is None else self._order.overtakers(queue)

    def own_share(self, queue: str, asked: int) -> dict[str, int]:
        """Fields of `Snapshot` for one queue: `room` to ask for more, and messages `ahead` of its runs."""
        taken = self.held(queue) + asked
        most = self.max_running(queue)
        own = {} if most is None else {"room": max(0, most - taken)}
        return own | ({"ahead": max(0, taken - self.begun(queue))} if self.overtakes(queue) else {})

    def _runnable(self) -> int | None:
        return None if self.slots is None else self.slots().runnable

    def _startable(self, waiting: Collection[str]) -> Collection[str]:
        if not waiting:
            return ()
        alone = len(self._begun) <= 1
        limit = None if alone or self._order.order == "fair" else self._runnable()
        if limit is not None and sum(map(len, self._begun.values())) - len(self._resting) >= limit:
            return ()
        if not self._most:
            return waiting
        begun, most = self._begun, self._most
        return [queue for queue in waiting if len(begun.get(queue, ())) < most.get(queue, math.inf)]
