"""Requests that wait in memory take no slot, and for so many of them others are received."""

import gc
import itertools
from types import SimpleNamespace

import pytest
from kombu.common import QoS
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.worker import waiting_requests as module
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests

IDS = map(str, itertools.count())
SLOTS = 2


class Asked:
    """A request of a message that is held."""

    def __init__(self, world):
        self.delivery = delivery(sqs_queue(), handle=next(IDS), message_id=next(IDS))
        self.delivery.consumer = world


class Other:
    """A request of a message that is not from SQS."""


class World:
    """A worker's consumer with its timer, and the consumer of its deliveries."""

    def __init__(self):
        self.waits, self.resumed, self.applied, self.timers = [], [], [], []
        self.qos = QoS(print, SLOTS)
        self.consumer = SimpleNamespace(
            qos=self.qos,
            timer=SimpleNamespace(call_after=lambda *entry, **options: self.timers.append((entry, options))),
            apply_eta_task=self.applied.append,
        )
        self.waiting = WaitingRequests(self.consumer)

    def rest(self, _delivery, wait):
        self.waits.append(wait)

    def resume(self, one):
        self.resumed.append(one)


@pytest.fixture
def world():
    return World()


def test_one_that_is_held_goes_on_as_one_whose_eta_has_come(world):
    request = Asked(world)
    world.waiting.hold(request)
    assert (world.waits, world.qos.value) == ([Wait.START], SLOTS + 1)
    world.waiting.hand_over(request)
    assert (world.applied, world.resumed) == ([request], [request.delivery])
    assert world.qos.value == SLOTS + 1, "Celery's own lowers it"


def test_one_that_was_given_back_meanwhile_is_not_handed_over_and_leaves_no_room(world):
    request = Asked(world)
    world.waiting.hold(request)
    request.delivery.state = State.SETTLED
    world.waiting.hand_over(request)
    assert (world.applied, world.qos.value) == ([], SLOTS)


def test_others_are_received_in_the_place_of_so_many(world, monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD", 2)
    requests = [Asked(world) for _ in range(4)]
    world.waiting.rest(requests[0], makes_room=False)
    for each in requests[1:]:
        world.waiting.rest(each)
    assert world.waits == [Wait.FAR_START, Wait.START, Wait.START, Wait.FAR_START]
    world.waiting.resume(requests[1])
    world.waiting.hold(requests[0])
    assert world.waits[-1] is Wait.START
    del requests[1:], each
    gc.collect()
    world.waiting.rest(Asked(world))
    assert world.waits[-1] is Wait.START, "those that nobody has any more count no longer"


def test_a_request_of_another_broker_has_no_slot_to_leave(world):
    for each in (Other(), Asked(None)):
        world.waiting.rest(each)
        world.waiting.resume(each)
    assert (world.waits, world.resumed) == ([], [])


def test_celerys_timer_calls_with_the_priority_of_an_eta(world):
    world.waiting.call_after(3.0, print, "a", "b")
    assert world.timers == [((3.0, print, ("a", "b")), {"priority": 6})]
