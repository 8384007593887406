"""Messages that Celery holds until their ETA or their rate allows them to run leave their slots to others."""

from itertools import count

import pytest
from support import factories
from support.factories import FilledCapacity

from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.policy.prefetch import Slots

HANDLES = map(str, count())


class World:
    """The capacity of a pool of two slots."""

    def __init__(self, name="q", **slots):
        self.capacity = FilledCapacity(slots=lambda: Slots(2, 8, **slots))
        self.queue = factories.sqs_queue(name)
        self.capacity.add_queue(name)

    def receive(self, number):
        """Messages that no poll was needed for; their deliveries."""
        handles = [next(HANDLES) for _ in range(number)]
        made = [factories.delivery(self.queue, handle=each, message_id=each) for each in handles]
        for delivery in made:
            self.capacity.count(delivery, 1)
        return made

    def rest(self, number, wait=Wait.START):
        resting = self.receive(number)
        for delivery in resting:
            self.capacity.rest(delivery, wait)
        return resting

    def settle(self, delivery):
        delivery.state = State.SETTLED
        self.capacity.free(delivery, 0.0)

    def free_slots(self):
        """How many messages a poll may ask for, now."""
        asked = 0
        polls = []
        while (poll := self.capacity.reserve(self.queue.name, fifo=self.queue.fifo)) is not None:
            polls.append(poll)
            asked += poll.messages
        for poll in polls:
            self.capacity.received(poll, 0)
        return asked


@pytest.mark.parametrize("name", ["q", "q.fifo"])
@pytest.mark.parametrize("number", [3, 20])
def test_what_rests_keeps_no_slot_until_its_time_comes(name, number):
    world = World(name)
    first, *_ = world.rest(number)
    assert (world.capacity.held, world.free_slots()) == (number, 2)
    for _ in range(2):
        world.capacity.resume(first)
        assert world.free_slots() == 1
    world.settle(first)
    assert world.free_slots() == 2


def test_a_queue_that_waits_for_capacity_has_it_at_once():
    world = World()
    first, second = world.receive(2)
    waiter = world.capacity.wait("q")
    assert waiter.reservation is None
    world.capacity.rest(first, Wait.START)
    world.capacity.serve(0.0)
    assert waiter.reservation.messages == 1
    world.capacity.rest(second, Wait.START)
    assert world.free_slots() == 1


def test_more_than_celerys_limit_take_slots_until_fewer_rest():
    world = World(eta_task_limit=3)
    first, *_ = world.rest(4)
    assert world.free_slots() == 1
    world.settle(first)
    assert world.free_slots() == 2


def test_what_is_settled_while_it_rests_is_not_missing_afterwards():
    world = World()
    for delivery in world.rest(5):
        world.settle(delivery)
    world.receive(2)
    assert (world.capacity.held, world.free_slots()) == (2, 0)


def test_what_was_settled_before_does_not_rest():
    world = World()
    gone, _ = world.receive(2)
    world.settle(gone)
    world.capacity.rest(gone, Wait.START)
    assert world.free_slots() == 1


def test_what_rests_of_another_queue_makes_no_room_for_a_fifo_queue():
    world = World()
    world.rest(5)
    fifo = factories.sqs_queue("q.fifo")
    world.capacity.hold(2, queue=fifo.name, fifo=True)
    assert world.capacity.reserve(fifo.name, fifo=True) is None


def test_what_rests_for_long_keeps_its_place():
    world = World()
    (delivery,) = world.rest(1, Wait.FAR_START)
    assert world.free_slots() == 1
    world.capacity.resume(delivery)
    assert world.free_slots() == 1
