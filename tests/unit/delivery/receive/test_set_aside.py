"""Messages that wait for something else than a slot leave their capacity to others, in bounds."""

from __future__ import annotations

import threading

import pytest
from support import factories
from support.processes import SOON

from celery_sqs_visibility.delivery.receive import set_aside as module
from celery_sqs_visibility.delivery.receive.set_aside import SetAside


class World:
    def __init__(self, name):
        self.capacity = factories.capacity()
        self.held = set()
        self.set_aside = SetAside(self.capacity, self.held.__contains__)
        self.queue = factories.sqs_queue(name)

    def delivery(self, handle="h"):
        delivery = factories.delivery(self.queue, handle=handle)
        self.held.add(delivery)
        self.capacity.hold(1, fifo=self.queue.fifo)
        return delivery

    def counts(self):
        return self.capacity.held, self.capacity._fifo.messages


@pytest.mark.parametrize(("name", "fifo"), [("q", 0), ("q.fifo", 1)])
def test_a_message_gives_its_capacity_once_and_takes_it_once(name, fifo):
    world = World(name)
    delivery = world.delivery()
    for _ in range(2):
        world.set_aside.add(delivery)
        assert world.counts() == (0, 0)
    for _ in range(2):
        world.set_aside.remove(delivery)
        assert world.counts() == (1, fifo)


def test_what_was_settled_meanwhile_has_given_its_capacity_already():
    world = World("q")
    delivery = world.delivery()
    world.held.clear()
    world.set_aside.add(delivery)
    assert world.counts() == (1, 0)


def test_a_settlement_in_the_middle_takes_the_capacity_back_once():
    world = World("q")
    delivery = world.delivery()

    def settle():
        world.held.clear()
        world.set_aside.remove(delivery)
        world.capacity.release()
        settled.set()

    def held_until_a_moment_ago(_delivery):
        threading.Thread(target=settle, daemon=True).start()
        settled.wait(0.1)  # in vain: the settlement waits for the lock
        return True

    settled = threading.Event()
    world.set_aside._holds = held_until_a_moment_ago
    world.set_aside.add(delivery)
    assert settled.wait(SOON)
    assert world.counts() == (0, 0)


def test_what_is_set_aside_has_place_again_unless_more_is_held_than_may_be():
    world = World("q")
    world.capacity.prefetch_count = 2
    aside, other = world.delivery("a"), world.delivery("b")
    world.set_aside.add(aside)
    world.capacity.hold(1)
    assert world.set_aside.has_place(aside)
    world.capacity.hold(1)
    assert not world.set_aside.has_place(aside)
    assert world.set_aside.has_place(other)


def test_only_so_many_are_set_aside(monkeypatch):
    monkeypatch.setattr(module, "MOST_SET_ASIDE", 2)
    world = World("q")
    for handle in "abc":
        world.set_aside.add(world.delivery(handle))
    assert world.counts() == (1, 0)
