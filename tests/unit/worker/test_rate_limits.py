"""Rate-limited tasks get their turns: near ones wait in memory without a slot, far ones in SQS."""

import itertools
from datetime import UTC, datetime

import pytest
from celery.worker import state
from kombu.common import QoS
from kombu.utils import limits
from kombu.utils.limits import TokenBucket
from support.factories import capacity, delivery, sqs_queue

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.worker import rate_limits, waiting_requests
from celery_sqs_visibility.worker.rate_limits import MAX_IN_SQS, RateLimits
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests

SLOTS = 2
RATE = 0.1  # a task every ten seconds
TIMEOUT = 25  # turns within half a minute are waited for in memory


QUEUE = sqs_queue()
IDS = map(str, itertools.count())


class Asked(DeliveryRequest):
    """A request of a message that is held."""

    visibility_timeout = TIMEOUT
    may = True

    def __init__(self):
        self.put_off_for = None
        self.id = next(IDS)
        self.delivery = delivery(QUEUE, handle=self.id, message_id=self.id)

    def put_off(self, seconds):
        if self.may:
            self.put_off_for = seconds
        return self.may


class Stuck(Asked):
    may = False


class Due(Asked):
    """A request with an ETA."""

    def __init__(self, seconds=TIMEOUT):
        super().__init__()
        self.due = datetime.fromtimestamp(SYSTEM_CLOCK.wall() + seconds, UTC)

    @property
    def eta(self):
        return self.due


class Consumer:
    """What Celery's does with its buckets and ETAs, but for the timer."""

    def __init__(self):
        self.qos = QoS(print, SLOTS)
        self.ran = []
        self.timers = 0

    def apply_eta_task(self, request):
        self.ran.append(request)
        self.qos.decrement_eventually()

    def _limit_task(self, request, bucket, tokens):
        bucket.add((request, tokens))
        self._schedule_bucket_request(bucket)

    def _schedule_bucket_request(self, bucket):
        while bucket.contents and bucket.can_consume(1):
            self._limit_move_to_pool(bucket.pop()[0])
        self.timers += bool(bucket.contents)

    def _limit_post_eta(self, request, bucket, tokens):
        """Ours is in its place."""

    def _limit_move_to_pool(self, request):
        self.ran.append(request)


class World:
    """A worker's consumer, a bucket, and the capacity that hears who has no slot."""

    def __init__(self):
        self.bucket = TokenBucket(RATE)
        self.consumer = Consumer()
        self.rested = []
        self.capacity = capacity()
        self.waiting = WaitingRequests(self.consumer)
        RateLimits(self.consumer, self.waiting)

    def rest(self, one, wait):
        """See `core.delivery.Consumer`."""
        self.rested.append(one)
        self.capacity.rest(one, wait)

    def resume(self, one):
        """See `core.delivery.Consumer`."""
        self.capacity.resume(one)

    @property
    def resting(self):
        """Without a turn."""
        return [one for one in self.rested if one.wait is not None]

    @property
    def makes_room(self):
        """How many others may be received."""
        return self.capacity._places.resting

    def arrive(self, request):
        if getattr(request, "delivery", None) is not None:
            request.delivery.consumer = self
        self.consumer._limit_task(request, self.bucket, 1)
        return request

    def wait_for_eta(self, request):
        """As a request does when it is made, and then Celery's strategy."""
        request.delivery.consumer = self
        self.waiting.wait_for_eta(request)
        self.consumer.qos.increment_eventually()
        return request


@pytest.fixture
def world(monkeypatch, system_clock):
    monkeypatch.setattr(limits, "monotonic", system_clock.monotonic)
    return World()


def test_who_need_not_wait_runs_at_once_and_who_waits_a_little_needs_no_slot_until_its_turn(world):
    first = world.arrive(Asked())
    assert (world.consumer.ran, world.makes_room) == ([first], 0)
    waiting = [world.arrive(Asked()) for _ in range(2)]
    assert [request.put_off_for for request in waiting] == [None, None]
    assert world.makes_room == 2
    assert world.resting == [request.delivery for request in waiting]
    for request in waiting:
        world.consumer._limit_move_to_pool(request)
    assert world.consumer.ran == [first, *waiting]
    assert (world.makes_room, world.resting) == (0, [])


def test_who_waits_long_is_put_off_each_after_the_one_before(world):
    requests = [world.arrive(Asked()) for _ in range(8)]
    turns = [request.put_off_for for request in requests]
    assert turns[:4] == [None] * 4
    assert turns[4:] == [40, 50, 60, 70]
    assert all(later > earlier for earlier, later in itertools.pairwise(turns[4:]))
    assert world.makes_room == 3


def test_who_comes_back_for_its_turn_goes_before_who_arrives(world):
    for _ in range(5):
        world.arrive(Asked())
    world.bucket.clear_pending()
    assert world.arrive(Asked()).put_off_for == 50, "after the one that was put off"
    back = world.wait_for_eta(Due())
    before = world.makes_room
    world.consumer._limit_post_eta(back, world.bucket, 1)
    assert back.put_off_for is None
    assert world.makes_room == before, "it waits for its rate now"
    assert world.consumer.qos.value == SLOTS


def test_who_comes_back_too_early_is_put_off_once_more(world):
    for _ in range(4):
        world.arrive(Asked())
    back = world.wait_for_eta(Due())
    world.consumer._limit_post_eta(back, world.bucket, 1)
    assert back.put_off_for == 40
    assert world.makes_room == 3
    assert world.consumer.qos.value == SLOTS


def test_who_cannot_wait_in_sqs_is_held_and_makes_no_room_for_more_where_its_turn_is_far_away(world):
    for _ in range(6):
        world.arrive(Stuck())
    assert len(world.bucket.contents) == 5
    assert world.makes_room == 3


def test_who_makes_no_room_has_no_slot_either_until_its_turn(world):
    requests = [world.arrive(Stuck()) for _ in range(6)]
    assert world.resting == [request.delivery for request in requests[1:]]
    for request in requests[3:5]:
        world.consumer._limit_move_to_pool(request)
    assert world.resting == [request.delivery for request in (requests[1], requests[2], requests[5])]
    assert world.makes_room == 2


def test_a_bucket_has_one_timer_however_many_wait(world):
    for _ in range(3):
        world.arrive(Stuck())
    world.consumer._limit_post_eta(world.wait_for_eta(Due()), world.bucket, 1)
    assert (len(world.bucket.contents), world.consumer.timers) == (3, 1)
    world.bucket.clear_pending()
    for _ in range(2):
        world.arrive(Stuck())
    assert world.consumer.timers == 2, "its timer has found nothing"


def test_who_did_not_come_from_sqs_keeps_its_slot(world):
    for _ in range(6):
        world.arrive(type("Request", (), {})())
    assert (len(world.bucket.contents), world.resting, world.makes_room) == (5, [], 0)


def test_there_is_a_limit_to_who_is_put_off(world, monkeypatch):
    monkeypatch.setattr(rate_limits, "MAX_IN_SQS", 5)
    turns = [world.arrive(Asked()).put_off_for for _ in range(12)]
    assert sum(turn is not None for turn in turns) == 2
    assert MAX_IN_SQS > 5


def test_there_is_a_limit_to_who_needs_no_slot(world, monkeypatch):
    monkeypatch.setattr(waiting_requests, "MAX_HELD", 2)
    for _ in range(4):
        world.arrive(Stuck())
    assert world.makes_room == 2


def test_who_waits_for_its_eta_needs_no_slot_until_then(world):
    first, second = (world.wait_for_eta(Due()) for _ in range(2))
    assert (world.makes_room, world.resting) == (2, [first.delivery, second.delivery])
    world.consumer.apply_eta_task(first)
    assert world.consumer.ran == [first]
    assert (world.makes_room, world.resting) == (1, [second.delivery])


def test_whose_eta_has_passed_keeps_its_slot(world):
    world.wait_for_eta(Due(-1))
    assert (world.makes_room, world.resting) == (0, [])


def test_of_a_message_that_came_back_the_request_that_is_over_wakes_nobody(world):
    """It was given back, in a pause, and another request waits for it."""
    over, again = Due(), Due()
    over.delivery.message_key = again.delivery.message_key
    for request in (over, again):
        world.wait_for_eta(request)
    over.delivery.state = State.SETTLED
    world.capacity.free(over.delivery, 0.0)
    world.consumer.apply_eta_task(over)
    assert (world.makes_room, again.delivery in world.resting) == (1, True)


def test_what_was_given_back_takes_nobodys_turn_when_its_eta_comes(world):
    gone = world.wait_for_eta(Due())
    state.requests[gone.id] = gone
    gone.delivery.state = State.SETTLED
    world.consumer._limit_post_eta(gone, world.bucket, 1)
    assert (world.consumer.ran, len(world.bucket.contents), gone.put_off_for) == ([], 0, None)
    assert world.consumer.qos.value == SLOTS
    assert gone.id not in state.requests
