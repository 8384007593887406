"""Messages of a paused task wait as copies, or in memory, and run once it is resumed."""

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
from celery.worker import state
from kombu.common import QoS
from support.clock import FakeClock
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.delivery.receive.pauses import LOOK_SECONDS, Pauses
from celery_sqs_visibility.worker import waiting_requests
from celery_sqs_visibility.worker.paused_tasks import wait_for_resume
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests
from celery_sqs_visibility.worker.worker_context import WorkerContext

IDS = map(str, itertools.count())
SLOTS = 2


class Asked(DeliveryRequest):
    """A request of a message that is held."""

    name = "task"
    put_off_for = None
    may_copy = True

    def __init__(self, world):
        self.id, self.worker = next(IDS), world.worker
        self.expires = None
        self.delivery = delivery(sqs_queue(), handle=self.id, message_id=self.id)
        self.delivery.consumer = world
        state.reserved_requests.add(self)

    def put_off(self, seconds, why):
        assert why is Why.PAUSE
        if self.may_copy:
            self.put_off_for = seconds
        return self.may_copy


class Uncopied(Asked):
    """One of a FIFO queue, for example."""

    may_copy = False


class World:
    """A worker's consumer with its timer, and the consumer of its deliveries."""

    def __init__(self):
        self.clock = FakeClock()
        self.pauses, self.worker = Pauses(self.clock), WorkerContext()
        self.timers, self.waits, self.resumed, self.applied = [], [], [], []
        self.qos = QoS(print, SLOTS)
        consumer = SimpleNamespace(
            qos=self.qos,
            timer=SimpleNamespace(call_after=lambda *entry, **_: self.timers.append(entry)),
            apply_eta_task=self.applied.append,
        )
        self.worker.waits_for_resume = partial(wait_for_resume, self.pauses, WaitingRequests(consumer))

    def resume(self, delivery):
        self.resumed.append(delivery)

    def rest(self, _delivery, wait):
        self.waits.append(wait)

    def let_timers_go_off(self):
        timers, self.timers = self.timers, []
        for _seconds, act, arguments in timers:
            act(*arguments)


@pytest.fixture
def world():
    return World()


def test_a_task_that_is_not_paused_runs(world):
    assert not Asked(world).revoked()
    world.pauses.pause("another task")
    assert not Asked(world).revoked()
    world.pauses.pause("task")
    world.pauses.resume("task")
    assert not Asked(world).revoked()


def test_a_message_of_a_paused_task_is_put_off_for_a_minute_and_is_celerys_no_more(world):
    world.pauses.pause("task")
    request = Asked(world)
    assert request.revoked()
    assert request.put_off_for == LOOK_SECONDS
    assert request not in state.reserved_requests
    assert not world.timers


def test_it_waits_no_longer_than_the_pause(world):
    world.pauses.pause("task", 20)
    request = Asked(world)
    assert request.revoked()
    assert request.put_off_for == 20
    world.clock.advance(20)
    assert not Asked(world).revoked()


def test_what_cannot_be_a_copy_waits_in_memory_without_a_slot_and_is_looked_at_again(world):
    world.pauses.pause("task")
    request = Uncopied(world)
    assert request.revoked()
    assert [seconds for seconds, *_ in world.timers] == [LOOK_SECONDS]
    assert (world.waits, world.qos.value) == ([Wait.START], SLOTS + 1)
    world.let_timers_go_off()
    assert world.applied == [request], "by Celery, which lowers its prefetch count, and asks again"
    assert world.resumed == [request.delivery]
    assert request.revoked()
    assert len(world.timers) == 1


def test_what_was_given_back_meanwhile_is_not_looked_at_and_not_put_off(world):
    world.pauses.pause("task")
    request = Uncopied(world)
    assert request.revoked()
    request.delivery.state = State.SETTLED
    world.let_timers_go_off()
    assert (world.applied, world.qos.value) == ([], SLOTS)
    assert not request.revoked(), "its dispatch tells"
    assert not world.timers


def test_a_worker_that_holds_many_receives_no_others_in_their_place(world, monkeypatch):
    monkeypatch.setattr(waiting_requests, "MAX_HELD", 1)
    world.pauses.pause("task")
    requests = [Uncopied(world) for _ in range(2)]
    assert all(request.revoked() for request in requests)
    assert world.waits == [Wait.START, Wait.FAR_START]
    world.let_timers_go_off()
    assert requests[1].revoked()
    assert world.waits[-1] is Wait.START


def test_a_message_of_another_broker_runs(world):
    world.pauses.pause("task")
    request = Asked(world)
    request.delivery = None
    assert not request.revoked()


def test_a_revoked_message_of_a_paused_task_is_discarded(world, monkeypatch):
    world.pauses.pause("task")
    request = Uncopied(world)
    monkeypatch.setattr(Uncopied, "_is_revoked", lambda _self: True)
    assert request.revoked()
    assert not world.timers
