"""Messages that wait for something else than a slot leave their capacity to others, in bounds."""

from types import SimpleNamespace

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.core import capacity as module
from celery_sqs_visibility.core.delivery import State, Wait


class World:
    def __init__(self, name):
        self.capacity = factories.capacity()
        self.queue = factories.sqs_queue(name)

    def delivery(self, handle="h"):
        delivery = factories.delivery(self.queue, handle=handle)
        self.capacity.count(delivery, 1)
        return delivery

    def set_aside(self, delivery):
        self.capacity.rest(delivery, Wait.PAYLOAD)

    def counts(self):
        return self.capacity.held, self.capacity._fifo.messages


@pytest.mark.parametrize(("name", "fifo"), [("q", 0), ("q.fifo", 1)])
def test_a_message_gives_its_capacity_once_and_takes_it_once(name, fifo):
    world = World(name)
    delivery = world.delivery()
    for _ in range(2):
        world.set_aside(delivery)
        assert world.counts() == (0, 0)
    for _ in range(2):
        world.capacity.resume(delivery)
        assert world.counts() == (1, fifo)


def test_what_was_settled_meanwhile_has_given_its_capacity_already():
    world = World("q")
    delivery = world.delivery()
    delivery.state = State.SETTLED
    world.set_aside(delivery)
    assert world.counts() == (1, 0)


@pytest.mark.parametrize(("name", "fifo"), [("q", 0), ("q.fifo", 1)])
@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize(
    ("began", "early", "runs"),
    [(None, False, 0), (None, True, 0), (1.0, False, 0), (1.0, True, 1)],
    ids=["unrun", "early, unrun", "run", "early"],
)
def test_a_settled_message_frees_its_capacity_once_and_an_early_run_keeps_a_slot(
    name, fifo, aside, began, early, runs
):
    world = World(name)
    delivery = world.delivery()
    delivery.began, delivery.acknowledged_early = began, early
    if aside:
        world.set_aside(delivery)
    world.capacity.free(delivery, 1.0)
    assert world.counts() == (0, 0)
    assert (world.capacity.runs, len(world.capacity._fifo.runs)) == (runs, fifo * runs)
    world.capacity.resume(delivery)
    assert world.counts() == (0, 0), "it is set aside no more"


def test_what_is_set_aside_has_place_again_unless_more_is_held_than_may_be():
    world = World("q")
    world.capacity.prefetch_count = 2
    aside, other = world.delivery("a"), world.delivery("b")
    world.set_aside(aside)
    world.capacity.hold(1)
    assert world.capacity.has_place(aside, 0.0)
    world.capacity.hold(1)
    assert not world.capacity.has_place(aside, 0.0)
    assert world.capacity.has_place(other, 0.0)


@pytest.mark.parametrize("counted_anew", [False, True])
def test_only_so_many_are_set_aside_at_once(monkeypatch, counted_anew):
    monkeypatch.setattr(module, "MAX_ASIDE", 2)
    world = World("q")
    world.capacity.prefetch_count = 1
    deliveries = [world.delivery(handle) for handle in "abc"]
    for delivery in deliveries:
        delivery.consumer = SimpleNamespace(capacity=world.capacity)
    for _ in range(2):
        for delivery in deliveries:
            world.set_aside(delivery)
        if counted_anew:
            world.capacity.wait("another")
            world.capacity.look(0.0, deliveries)
        assert world.counts() == (1, 0)
        world.set_aside(deliveries[2])
        assert world.counts() == (1, 0)
        for delivery in deliveries:
            world.capacity.resume(delivery)
        assert world.counts() == (3, 0)


def test_what_is_held_beyond_the_slots_at_the_present_pace_has_place_again():
    clock = FakeClock()
    shared = factories.capacity(4, slots=1, prefetch_seconds=1.0, clock=clock)
    aside, *others = shared.hold(10)
    shared.rest(aside, Wait.PAYLOAD)
    for each in others:
        clock.advance(0.01)
        shared.release(each, began=clock.monotonic() - 0.01)
    shared.hold(10)
    assert shared.has_place(aside, clock.monotonic())
    assert not shared.has_place(aside, clock.monotonic() + 60)
