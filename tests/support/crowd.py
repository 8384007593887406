"""A worker with many queues, simulated: the real `Capacity`, a clock that jumps between events."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

from support.clock import FakeClock
from support.factories import FilledCapacity

from celery_sqs_visibility.policy.prefetch import Slots

ROUND_TRIP_SECONDS = 0.01
LOOK_SECONDS = 0.5  # between two looks of the supervisor


class Queue:
    """Its messages, and the one thread that polls it."""

    def __init__(self, name, fifo):
        self.name, self.fifo = name, fifo
        self.messages = deque()  # when each was published
        self.waiter = self.poll = None
        self.answer_due = math.inf
        self.polls = []  # when they began
        self.started = []  # when its tasks began
        self.delays = []  # and how long after they were published


class Crowd:
    """`run()` it for some seconds; everything else is there to be looked at."""

    def __init__(self, queues, slots, task_seconds=0.05, multiplier=4, fifo=False):
        self.clock = FakeClock()
        self.began = self.clock.monotonic()
        count = slots * multiplier
        self.capacity = FilledCapacity(1.0, self.clock, lambda: Slots(slots, count))
        self.capacity.prefetch_count = count
        self.slots, self.task_seconds = slots, task_seconds
        self.queues = [Queue(f"q{number}", fifo) for number in range(queues)]
        self.held = deque()  # (queue, published) that wait for a slot
        self.running = 0
        self.waiting = []  # queues that wait for capacity
        self.most_held = 0
        self._events, self._order = [], itertools.count()
        for queue in self.queues:
            self.capacity.add_queue(queue.name)
        for queue in self.queues:
            self._wait_for_capacity(queue)
        self._at(self.now + LOOK_SECONDS, self._look)

    @property
    def now(self):
        return self.clock.monotonic()

    def publish(self, queue, count=1):
        queue.messages.extend([self.now] * count)
        if queue.poll is not None and queue.answer_due > self.now + ROUND_TRIP_SECONDS:
            self._answer_at(queue, self.now + ROUND_TRIP_SECONDS)

    def run(self, seconds, until=lambda: False):
        end = self.now + seconds
        self._begin_polls()
        while self._events and self._events[0][0] <= end and not until():
            at, _, event, *arguments = heapq.heappop(self._events)
            self.clock.advance(max(0.0, at - self.now))
            event(*arguments)
            self._begin_polls()
        if not until():
            self.clock.advance(max(0.0, end - self.now))

    def _at(self, when, event, *arguments):
        heapq.heappush(self._events, (when, next(self._order), event, *arguments))

    def _look(self):
        self.capacity.look(self.now)
        self._at(self.now + LOOK_SECONDS, self._look)

    def _begin_polls(self):
        if len(self.capacity.waiters) < len(self.waiting):  # capacity was reserved for one
            for queue in [queue for queue in self.waiting if queue.waiter.reservation]:
                self.waiting.remove(queue)
                queue.poll, queue.waiter = queue.waiter.reservation, None
                queue.polls.append(self.now)
                self._answer_at(queue, self.now + (ROUND_TRIP_SECONDS if queue.messages else queue.poll.wait))

    def _wait_for_capacity(self, queue):
        queue.waiter = self.capacity.wait(queue.name, fifo=queue.fifo)
        self.waiting.append(queue)

    def _answer_at(self, queue, when):
        queue.answer_due = when
        self._at(when, self._answer, queue, queue.poll)

    def _answer(self, queue, poll):
        if queue.poll is not poll or self.now < queue.answer_due:
            return  # it was answered sooner
        brought = [queue.messages.popleft() for _ in range(min(poll.messages, len(queue.messages)))]
        queue.poll, queue.answer_due = None, math.inf
        self.capacity.received(poll, len(brought))
        self.held.extend((queue, published) for published in brought)
        self._start()
        self.most_held = max(self.most_held, len(self.held))
        self._wait_for_capacity(queue)

    def _start(self):
        while self.held and self.running < self.slots:
            queue, published = self.held.popleft()
            self.running += 1
            queue.started.append(self.now)
            queue.delays.append(self.now - published)
            self._at(self.now + self.task_seconds, self._end, queue, self.now)

    def _end(self, queue, began):
        self.running -= 1
        self.capacity.release(queue=queue.name, began=began)
        self._start()
