"""Turns of a worker's queues: Celery gets a message once there is a slot for it, in the order of the queues.

Celery runs messages in the order in which it gets them. So messages that others may overtake stay in the
buffer until they can start.
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
    """The messages that Celery has until their runs end, and whose queue is next. One for each process.

    Args:
        order: the option `queue_order`.
        options_of: returns the options of a queue; `weight` and `max_running` are used.

    Attributes:
        slots: returns the slots of the process.
    """

    def __init__(self, order: Order, options_of: OptionsOfQueue) -> None:
        self._options_of = options_of
        self._order = QueueOrder(order, options_of)
        # The messages that Celery has, by queue and message, of all queues ever consumed. A run that nothing
        # refers to any more has no slot.
        self._begun: dict[str, WeakValueDictionary[tuple[str, str], Delivery]] = {}
        # Messages that wait for their ETA or rate limit, and take no slot.
        self._resting: WeakValueDictionary[tuple[str, str], Delivery] = WeakValueDictionary()
        # Messages held of each queue, and runs whose messages were settled when the run began. They count for
        # the whole process, because runs of an earlier connection go on.
        self._held: Counter[str] = Counter()
        self._runs: defaultdict[str, WeakSet[Delivery]] = defaultdict(WeakSet)
        # The option `max_running` of each queue that has it.
        self._most: dict[str, int] = {}
        self.slots: Callable[[], Slots] | None = None

    def add_queue(self, queue: str) -> None:
        """Add a queue that is consumed from now on. Idempotent."""
        if queue in self._begun:
            return
        self._order.add(queue)
        self._begun[queue] = WeakValueDictionary()
        if (most := self.max_running(queue)) is not None:
            self._most[queue] = most

    def next(self, waiting: Collection[str]) -> str | None:
        """The queue whose turn it is, if any of these has a message that can start; otherwise `None`."""
        startable = self._startable(waiting)
        return self._order.next(startable) if startable else None

    def may_start(self, waiting: Collection[str]) -> bool:
        """Whether a message of any of these queues can start."""
        return bool(self._startable(waiting))

    def begin(self, delivery: Delivery) -> None:
        """Note that Celery has a message."""
        queue = delivery.queue.name
        self.add_queue(queue)
        self._begun[queue][delivery.message_key] = delivery

    def end(self, delivery: Delivery) -> None:
        """Forget a message that is settled and does not run. Idempotent."""
        if (of_queue := self._begun.get(delivery.queue.name)) is not None:
            of_queue.pop(delivery.message_key, None)
        if self._resting:
            self._resting.pop(delivery.message_key, None)

    def rest(self, delivery: Delivery) -> None:
        """Free the slot of a message that Celery holds for its ETA or rate; it still counts for its queue."""
        of_queue = self._begun.get(delivery.queue.name)
        if of_queue is not None and (begun := of_queue.get(delivery.message_key)) is not None:
            self._resting[delivery.message_key] = begun

    def resume(self, delivery: Delivery) -> None:
        """Give a message its slot again after its wait. Idempotent."""
        self._resting.pop(delivery.message_key, None)

    def hold(self, queue: str, messages: int) -> None:
        """Count this many more messages of the queue as held."""
        self._held[queue] += messages

    def recount(self, queues: Iterable[str]) -> None:
        """Count the held messages anew, given the queue of each."""
        self._held = Counter(queues)

    def start_run(self, run: Delivery) -> None:
        """Count a run that goes on after its message was settled."""
        self._runs[run.queue.name].add(run)

    def end_run(self, run: Delivery) -> None:
        """Stop counting a run whose message was settled before."""
        self._runs[run.queue.name].discard(run)

    def held(self, queue: str) -> int:
        """Number of messages of the queue that are held or run. Any thread."""
        return self._held[queue] + len(self._runs.get(queue, ()))

    def rank(self, queue: str) -> int:
        """The queue's place in the order in which waiting queues are served."""
        return self._order.rank(queue)

    def begun(self, queue: str) -> int:
        """Number of messages of the queue that Celery has."""
        return len(self._begun.get(queue, ()))

    def max_running(self, queue: str) -> int | None:
        """The queue's option `max_running`."""
        return self._options_of(queue).max_running

    def is_full(self, queue: str) -> bool:
        """Whether the process holds as many messages of the queue as `max_running` allows. Any thread."""
        return self.own_share(queue, 0).get("room") == 0

    def overtakes(self, queue: str) -> bool:
        """Whether a message of the queue may run before others that came first."""
        return self._runnable() is not None and self._order.overtakes(queue)

    def overtakers(self, queue: str) -> frozenset[str]:
        """The queues that may overtake this one; none if this one may overtake others."""
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
