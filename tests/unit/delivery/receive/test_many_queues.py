"""One worker, many queues, simulated: a busy queue keeps its pace, idle ones rotate; little is held."""

import functools
import heapq
import itertools
import math
from collections import deque

import pytest
from support.clock import FakeClock
from support.factories import FilledCapacity

from celery_sqs_visibility.policy.prefetch import IDLE_QUEUE_PERIOD_SECONDS, Slots

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


QUEUES = [1, 5, 20, 50, 200]
SLOTS = [1, 2, 8, 100]
#: A task of either kind: of many that are short some are held beyond the slots, of long ones none.
SECONDS = [0.05, 3]
MANY = pytest.mark.slow("two hundred queues are simulated")
EVERY_SIZE = [
    pytest.param(queues, slots, marks=[MANY] if queues == max(QUEUES) else [])
    for queues in QUEUES
    for slots in SLOTS
]


def spare_of(queues, slots, multiplier=4):
    return slots + max(1, slots * (multiplier - 1), queues // IDLE_QUEUE_PERIOD_SECONDS)


@functools.cache
def seconds_of_a_burst(queues, slots, task_seconds, multiplier=4):
    """How long a worker that was idle takes for a burst in one of its queues."""
    crowd = Crowd(queues, slots, task_seconds, multiplier)
    crowd.run(60)
    busy = crowd.queues[queues // 2]
    count = min(max(20, round(10 * slots / task_seconds)), 3000)
    crowd.publish(busy, count)
    crowd.run(600, until=lambda: len(busy.started) == count)
    assert len(busy.started) == count
    return busy.started[-1] - busy.started[0]


@pytest.mark.parametrize(("task_seconds", "multiplier"), [(0.05, 4), (3, 1), (3, 4)])
@pytest.mark.parametrize(("queues", "slots"), EVERY_SIZE)
def test_a_busy_queue_has_half_of_its_pace_at_the_least_however_many_are_idle(
    queues, slots, task_seconds, multiplier
):
    alone = seconds_of_a_burst(1, slots, task_seconds, multiplier)
    assert seconds_of_a_burst(queues, slots, task_seconds, multiplier) <= 2 * alone


@pytest.mark.parametrize(("queues", "slots"), EVERY_SIZE)
def test_an_idle_queue_costs_two_polls_in_20_seconds_at_the_most(queues, slots):
    crowd = Crowd(queues, slots)
    crowd.run(200)
    polls = sum(len(queue.polls) for queue in crowd.queues)
    assert polls <= queues * 2 * 200 / 20 + queues
    assert max(len(queue.polls) for queue in crowd.queues) <= 2 * min(
        len(queue.polls) for queue in crowd.queues
    )


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(("queues", "slots"), EVERY_SIZE)
def test_the_first_message_of_each_idle_queue_starts_within_a_rotation(queues, slots, busy):
    crowd = Crowd(queues, slots, task_seconds=0.5 if slots == 100 else 0.05)
    crowd.run(30)
    if busy:
        crowd.publish(crowd.queues[0], 200 * slots * 20)
    idle = crowd.queues[1:] or crowd.queues
    for queue in idle[:: max(1, len(idle) // 4)]:
        crowd.publish(queue)
        crowd.run(3.7)
    crowd.run(25)
    delays = [delay for queue in idle for delay in queue.delays[:1]]
    assert delays
    assert max(delays) <= 2 * IDLE_QUEUE_PERIOD_SECONDS + 2


@pytest.mark.parametrize("task_seconds", SECONDS)
@pytest.mark.parametrize(("queues", "slots"), EVERY_SIZE)
def test_what_is_held_stays_bounded_whatever_comes_at_once(queues, slots, task_seconds):
    crowd = Crowd(queues, slots, task_seconds)
    crowd.run(60)
    for queue in crowd.queues:
        crowd.publish(queue, 20)
    crowd.run(30)
    limit = slots if task_seconds >= 1 else max(slots * 4, 1.5 * slots / task_seconds)
    assert crowd.most_held <= limit + spare_of(queues, slots)


@pytest.mark.parametrize(("queues", "slots"), EVERY_SIZE)
def test_of_long_tasks_of_busy_queues_nothing_is_held_beyond_the_slots(queues, slots):
    crowd = Crowd(queues, slots, task_seconds=5, multiplier=1)
    for queue in crowd.queues:
        crowd.publish(queue, 1000)
    crowd.run(60 + 20 * queues / slots)
    crowd.most_held = 0
    crowd.run(120)
    assert crowd.most_held <= 1


@pytest.mark.slow("minutes of a busy worker are simulated")
@pytest.mark.parametrize("task_seconds", SECONDS)
@pytest.mark.parametrize(("queues", "slots"), [(5, 8), (50, 2), (200, 2)])
def test_no_busy_queue_starves(queues, slots, task_seconds):
    crowd = Crowd(queues, slots, task_seconds)
    for queue in crowd.queues:
        crowd.publish(queue, 100_000)
    turn = 2 * task_seconds + 10 * queues * task_seconds / slots  # in which each could have ten
    crowd.run(2 * IDLE_QUEUE_PERIOD_SECONDS + turn)
    before = {queue: len(queue.started) for queue in crowd.queues}
    crowd.run(2 * turn)
    shares = [len(queue.started) - before[queue] for queue in crowd.queues]
    assert min(shares) >= max(1, math.floor(sum(shares) / queues / 3))


@pytest.mark.parametrize("slots", SLOTS)
def test_of_a_fifo_queue_nothing_is_held_beyond_the_slots(slots):
    crowd = Crowd(1, slots, fifo=True)
    crowd.publish(crowd.queues[0], 50 * slots)
    crowd.run(60, until=lambda: not crowd.queues[0].messages)
    assert crowd.most_held == 0
