"""Celery gets a message when there is a slot for it, and in the order of the queues."""

import gc
import select
import threading
from itertools import count

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import FilledCapacity

from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery.receive.buffer import Buffer, BufferedMessage
from celery_sqs_visibility.delivery.receive.turn_line import TurnBuffers
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import Slots

QUEUES = {name: factories.sqs_queue(name) for name in ("high", "low")}
HANDLES = map(str, count())


class World:
    """Turns, a buffer, and the capacity of a pool with these slots."""

    def __init__(self, order="strict", slots=2, prefetch_count=None, names=QUEUES, **queues):
        self.clock = FakeClock()
        queues = {"high": {}, "low": {}, **queues}
        self.options = Options.parse({"queues": queues, "queue_order": order})
        self.turns = Turns(order, self.options.for_queue)
        self.buffers = TurnBuffers(self.turns, threading.Lock())
        self.of_pool = Slots(slots, slots if prefetch_count is None else prefetch_count)
        self.requests = []  # as Celery keeps them
        self.names_of_queues = names
        self.connect()

    def connect(self):
        """As at the start, or anew."""
        self.capacity = FilledCapacity(0.0, self.clock, lambda: self.of_pool, self.turns)
        self.capacity.prefetch_count = self.of_pool.prefetch_count
        self.buffer = Buffer()
        self.buffers.attach(self.buffer, lambda: self.of_pool)
        for name in self.names_of_queues:
            self.capacity.add_queue(name)
            self.turns.add_queue(name)

    def arrive(self, name, number=1):
        """Messages that no poll was needed for; the deliveries."""
        made = [
            factories.delivery(QUEUES[name], handle=next(HANDLES), message_id=next(HANDLES))
            for _ in range(number)
        ]
        for one in made:
            self.capacity.count(one, 1)
        self.buffer.put([BufferedMessage(one, {}, print) for one in made])
        self.requests += made
        return made

    def handed(self):
        """Those that Celery gets now."""
        return [buffered.delivery for buffered in iter(self.buffer.get, None)]

    def names(self):
        return [one.queue.name for one in self.handed()]

    def end(self, delivery, capacity=None):
        capacity = capacity or self.capacity
        capacity.free(delivery, self.clock.monotonic())
        capacity.serve(self.clock.monotonic(), delivery.queue.name)
        self.buffers.wake()

    def rest(self, delivery):
        self.capacity.rest(delivery, Wait.FAR_START)
        self.buffers.wake()

    def asked(self, name):
        reservation = self.capacity.reserve(name)
        return reservation.messages if reservation else 0

    @property
    def awake(self):
        self.buffer.woken()
        self.buffer.wake_if_ready()
        return bool(select.select([self.buffer.fileno()], [], [], 0)[0])


def test_what_has_no_slot_stays_and_may_be_overtaken():
    world = World()
    lows = world.arrive("low", 4)
    assert world.handed() == lows[:2]
    assert not world.awake
    assert not world.buffer.wait(0)
    world.arrive("high")
    world.end(lows[0])
    assert world.awake
    assert world.names() == ["high"]
    world.end(lows[1])
    assert world.handed() == [lows[2]]
    assert len(world.buffer) == 1


def test_weights_decide_who_is_next():
    world = World("weighted", slots=1, high={"weight": 3})
    world.arrive("low", 4)
    world.arrive("high", 4)
    names = []
    while handed := world.handed():
        names.append(handed[0].queue.name)
        world.end(handed[0])
    assert names == ["high", "low", "high", "high", "high", "low", "low", "low"]


def test_no_more_of_a_queue_than_its_most_run_at_once_in_any_order():
    world = World("fair", slots=9, low={"max_running": 2})
    lows = world.arrive("low", 3)
    world.arrive("high", 2)
    assert sorted(world.names()) == ["high", "high", "low", "low"]
    world.end(lows[0])
    assert world.handed() == [lows[2]]


@pytest.mark.parametrize("prefetch_count", [2, 0])
def test_an_eta_takes_no_slot_and_without_a_limit_there_is_no_order(prefetch_count):
    world = World(slots=2, prefetch_count=prefetch_count)
    first, *_ = world.arrive("low", 3)
    assert len(world.handed()) == (2 if prefetch_count else 3)
    world.rest(first)
    assert len(world.handed()) == (1 if prefetch_count else 0)


def test_another_channel_of_the_connection_leaves_what_waits_where_it_is():
    world = World(slots=1)
    first, second = world.arrive("low", 2)
    world.buffers.attach(world.buffer, lambda: world.of_pool)
    assert world.handed() == [first]
    world.end(first)
    assert world.handed() == [second]


def test_another_connection_shares_the_slots():
    world = World(slots=1)
    (first,) = world.arrive("low")
    world.handed()
    world.connect()
    second, _ = world.arrive("low", 2)
    assert world.handed() == []
    world.end(first)
    assert world.awake
    assert world.handed() == [second]


def test_where_nothing_waits_nobody_asks_for_slots():
    world = World()
    (low,) = world.arrive("low")
    world.handed()
    world.buffers.attach(world.buffer, lambda: 1 / 0)  # as where the pool has gone
    world.end(low)
    world.buffers.wake()


def test_a_queue_alone_needs_no_turns():
    world = World(names=["low"])
    lows = world.arrive("low", 3)
    assert world.handed() == lows


def test_a_run_that_nobody_refers_to_any_more_has_no_slot():
    world = World(slots=1)
    world.arrive("low", 2)
    assert len(world.handed()) == 1
    assert not world.awake
    del world.requests[0]
    gc.collect()
    world.buffers.wake()
    assert world.awake
    assert world.handed() == world.requests


def test_what_is_taken_out_leaves_the_rest_in_order():
    world = World(slots=9)
    first, second, third = world.arrive("low", 3)
    taken = world.buffer.take(lambda one: one.delivery is second)
    assert [one.delivery for one in taken] == [second]
    assert world.handed() == [first, third]


@pytest.mark.parametrize(("order", "beyond"), [("strict", (1, 0)), ("weighted", (1, 1)), ("fair", (0, 0))])
def test_a_queue_that_may_overtake_is_polled_although_others_fill_the_slots(order, beyond):
    world = World(order)
    world.arrive("low", 2)
    world.handed()
    assert (world.asked("high"), world.asked("low")) == beyond
    assert (world.asked("high"), world.asked("low")) == (0, 0), "one that waits is enough"


def test_a_queue_at_its_most_is_asked_for_nothing_and_keeps_no_other_from_being_asked():
    world = World("fair", slots=9, low={"max_running": 2})
    assert world.asked("low") == 2
    assert world.asked("low") == 0
    waiter = world.capacity.wait("low")
    assert world.asked("high") > 0
    assert waiter.reservation is None
    world.capacity.expect("low", 0.0)
    assert waiter.reservation is None


@pytest.mark.parametrize(("max_running", "asked"), [(None, [1, 0]), (3, [1, 0]), (2, [0, 0])])
def test_what_runs_since_an_earlier_connection_counts_for_its_queue(max_running, asked):
    world = World(slots=2, high={"max_running": max_running} if max_running else {})
    earlier, capacity = world.arrive("high", 2), world.capacity
    world.handed()
    world.connect()
    world.capacity.hold(2, queue="low")
    assert [world.asked("high") for _ in range(2)] == asked
    for delivery in earlier:
        world.end(delivery, capacity)
    assert world.asked("high") == (0 if max_running != 2 else 1)


def test_a_task_that_waits_for_its_rate_has_no_slot_until_its_turn():
    world = World(slots=2, low={"max_running": 3})
    lows = world.arrive("low", 5)
    assert world.handed() == lows[:2]
    for delivery in lows[:2]:
        world.rest(delivery)
    assert world.awake
    assert world.handed() == [lows[2]], "it runs for the queue's own limit"
    assert len(world.arrive("high", 2)) == 2
    assert world.names() == ["high"]
    world.capacity.resume(lows[0])
    world.end(lows[2])
    assert world.names() == []
    world.end(lows[1])  # revoked while it rested
    world.end(lows[0])
    assert world.names() == ["high"]


def test_the_next_message_is_asked_for_as_soon_as_one_that_waited_goes_to_celery():
    world = World(slots=1)
    world.arrive("low")
    world.handed()
    (high,) = world.arrive("high")
    waiter = world.capacity.wait("high")
    world.end(world.requests[0])
    assert waiter.reservation is None
    assert world.handed() == [high]
    world.capacity.serve(0.0, "high")
    assert waiter.reservation.messages == 1


def test_waiters_are_served_in_the_order_of_the_queues():
    world = World(slots=1)
    for name in ("low", "high"):  # both have brought something
        world.capacity.received(world.capacity.reserve(name), 1)
    lows, highs = world.arrive("low", 0), world.arrive("high", 0)
    assert (lows, highs) == ([], [])
    waiters = {name: world.capacity.wait(name) for name in ("low", "high")}
    assert [waiter.reservation for waiter in waiters.values()] == [None, None]
    world.capacity.release(queue="low")
    world.capacity.release(queue="high")
    assert waiters["high"].reservation
    assert waiters["low"].reservation is None


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("multiplier", [1, 4])
@pytest.mark.parametrize("number", [2, 3, 5, 13])
def test_every_queue_of_a_strict_order_is_polled_at_all_times(slots, multiplier, number):
    names = [f"q{place}" for place in range(number)]
    world = World(slots=slots, prefetch_count=slots * multiplier, names=names, **{name: {} for name in names})
    polls = [world.capacity.reserve(name) for name in names]
    assert all(polls)
    for poll in polls:
        world.capacity.received(poll, 0)
        assert world.asked(poll.queue), "though all others wait for messages"


def test_the_last_queues_of_a_strict_order_take_turns_whatever_is_polled_before_them():
    last = [f"import-{number}" for number in range(12)]
    world = World(slots=1, prefetch_count=1, names=["high", "low", *last], **{"import-*": {}})
    assert [world.asked(name) for name in ("high", "low")] == [1, 1]
    polls = [world.capacity.reserve(name) for name in last]
    assert [(poll.messages, poll.wait) if poll else None for poll in polls] == [(1, 1), *[None] * 11]
    waiter = world.capacity.wait(last[-1])
    world.capacity.received(polls[0], 0)
    assert waiter.reservation


def test_a_queue_that_has_enough_does_not_keep_those_it_overtakes_from_their_turns():
    names = ["first", "second", "third", "last"]
    world = World(slots=2, names=names, **{name: {} for name in names})
    assert [world.asked(name) for name in names[1:3]] == [1, 1]
    world.capacity.hold(1, queue="first")  # it waits to be handed over
    world.capacity.hold(1, queue="last")
    waiters = [world.capacity.wait(name) for name in ("first", "last")]
    assert [waiter.reservation for waiter in waiters] == [None, None]
    world.capacity.release(queue="last")
    assert [waiter.reservation is not None for waiter in waiters] == [False, True]


def test_a_task_that_has_no_slot_may_wait_for_its_rate():
    world = World(slots=1)
    first, second = world.arrive("low", 2)
    world.rest(second)
    assert world.handed() == [first]
    world.end(first)
    assert world.handed() == [second]
