"""Rate-limited tasks get their turns: near ones wait in memory without a slot, far ones in SQS."""

from __future__ import annotations

import inspect
import itertools
from types import SimpleNamespace

import pytest
from kombu.common import QoS
from kombu.utils.limits import TokenBucket
from support.factories import FakeHolder, held_delivery

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.worker import rate_limits
from celery_sqs_visibility.worker.rate_limits import MOST_AWAY, RateLimits
from celery_sqs_visibility.worker.request import DeliveryRequest

SLOTS = 2
RATE = 0.1  # a task every ten seconds
TIMEOUT = 25  # turns within half a minute are waited for in memory
MARGIN = 5.0  # seconds that a slow machine may take


class Asked(DeliveryRequest):
    """A request without a message."""

    visibility_timeout = TIMEOUT
    may = True
    id = "an id"

    def __init__(self):
        self.eta_given = None
        self.delivery = object()

    def put_off(self, eta):
        if self.may:
            self.eta_given = eta - SYSTEM_CLOCK.wall()
        return self.may


class Stuck(Asked):
    may = False


class Consumer:
    """What Celery's does with its buckets, but for the timer."""

    def __init__(self, **limit):
        self.qos = QoS(print, SLOTS, **limit)
        self.ran = []

    def _limit_task(self, request, bucket, tokens):
        bucket.add((request, tokens))
        self._schedule_bucket_request(bucket)

    def _schedule_bucket_request(self, bucket):
        while bucket.contents and bucket.can_consume(1):
            self._limit_move_to_pool(bucket.pop()[0])

    def _limit_post_eta(self, request, bucket, tokens):
        self.qos.decrement_eventually()
        bucket.add((request, tokens))
        self._schedule_bucket_request(bucket)

    def _limit_move_to_pool(self, request):
        self.ran.append(request)


@pytest.fixture
def make():
    def make(**limit):
        consumer = Consumer(**limit)
        resting = make.resting
        RateLimits(consumer, SimpleNamespace(rest=resting.append, resume=resting.remove))
        original = consumer._limit_task
        return consumer, lambda request: original(request, bucket, 1) or request

    bucket = TokenBucket(RATE)
    make.bucket, make.resting = bucket, []
    return make


def test_who_need_not_wait_runs_at_once_and_who_waits_a_little_needs_no_slot_until_its_turn(make):
    consumer, arrive = make()
    first = arrive(Asked())
    assert consumer.ran == [first]
    assert consumer.qos.value == SLOTS
    waiting = [arrive(Asked()) for _ in range(2)]
    assert [request.eta_given for request in waiting] == [None, None]
    assert consumer.qos.value == SLOTS + 2
    for request in waiting:
        consumer._limit_move_to_pool(request)
    assert consumer.ran == [first, *waiting]
    assert consumer.qos.value == SLOTS


def test_who_waits_long_is_put_off_each_after_the_one_before(make):
    consumer, arrive = make()
    requests = [arrive(Asked()) for _ in range(8)]
    turns = [request.eta_given for request in requests]
    assert turns[:4] == [None] * 4
    assert turns[4:] == [pytest.approx(seconds, abs=MARGIN) for seconds in (40, 50, 60, 70)]
    assert all(later > earlier for earlier, later in itertools.pairwise(turns[4:]))
    assert consumer.qos.value == SLOTS + 3


def test_who_comes_back_for_its_turn_goes_before_who_arrives(make):
    consumer, arrive = make()
    for _ in range(5):
        arrive(Asked())
    make.bucket.clear_pending()
    assert arrive(Asked()).eta_given == pytest.approx(50, abs=MARGIN), "after the one that was put off"
    consumer.qos.increment_eventually()  # as Celery does for an ETA
    before = consumer.qos.value
    back = Asked()
    consumer._limit_post_eta(back, make.bucket, 1)
    assert back.eta_given is None
    assert consumer.qos.value == before


def test_who_comes_back_too_early_is_put_off_once_more(make):
    consumer, arrive = make()
    for _ in range(4):
        arrive(Asked())
    consumer.qos.increment_eventually()
    back = Asked()
    consumer._limit_post_eta(back, make.bucket, 1)
    assert back.eta_given == pytest.approx(40, abs=MARGIN)
    assert consumer.qos.value == SLOTS + 3


def test_who_cannot_wait_in_sqs_is_held_and_makes_no_room_for_more_where_its_turn_is_far_away(make):
    consumer, arrive = make()
    for _ in range(6):
        arrive(Stuck())
    assert len(make.bucket.contents) == 5
    assert consumer.qos.value == SLOTS + 3


def test_who_makes_no_room_has_no_slot_either_until_its_turn(make):
    consumer, arrive = make()
    requests = [arrive(Stuck()) for _ in range(6)]
    assert make.resting == [request.delivery for request in requests[4:]], "but those of a raised count"
    for request in requests[3:5]:
        consumer._limit_move_to_pool(request)
    assert make.resting == [requests[5].delivery]


def test_who_makes_no_room_and_did_not_come_from_sqs_keeps_its_slot(make, monkeypatch):
    monkeypatch.setattr(rate_limits, "MOST_HELD", 0)
    consumer, arrive = make()
    for _ in range(6):
        arrive(type("Request", (), {})())
    assert (len(make.bucket.contents), make.resting) == (5, [])
    assert consumer.qos.value == SLOTS


def test_there_is_a_limit_to_who_is_put_off(make, monkeypatch):
    monkeypatch.setattr(rate_limits, "MOST_AWAY", 5)
    _, arrive = make()
    turns = [arrive(Asked()).eta_given for _ in range(12)]
    assert sum(turn is not None for turn in turns) == 2
    assert MOST_AWAY > 5


def test_there_is_a_limit_to_who_needs_no_slot(make, monkeypatch):
    monkeypatch.setattr(rate_limits, "MOST_HELD", 2)
    consumer, arrive = make()
    for _ in range(4):
        arrive(Stuck())
    assert consumer.qos.value == SLOTS + 2


@pytest.mark.skipif(
    "max_prefetch" not in inspect.signature(QoS).parameters, reason="kombu 5.5 has no worker_eta_task_limit"
)
def test_what_celerys_own_limit_did_not_count_is_not_discounted(make):
    consumer, arrive = make(max_prefetch=SLOTS + 1)
    waiting = [arrive(Asked()) for _ in range(4)][1:]
    assert consumer.qos.value == SLOTS + 1
    for request in waiting:
        consumer._limit_move_to_pool(request)
    assert consumer.qos.value == SLOTS


def test_tasks_that_did_not_come_from_sqs_are_celerys(make):
    _, arrive = make()
    for _ in range(6):
        arrive(type("Request", (), {})())
    assert len(make.bucket.contents) == 5


def test_what_is_given_back_while_it_waits_makes_room_for_no_other():
    consumer, bucket = Consumer(), TokenBucket(RATE)
    limits = RateLimits(consumer)
    first, given_back, other = (Asked() for _ in range(3))
    for request in (first, given_back, other):
        request.delivery = held_delivery(FakeHolder())
        consumer._limit_task(request, bucket, 1)
    assert consumer.qos.value == SLOTS + 2
    limits.forget([given_back.delivery])
    assert consumer.qos.value == SLOTS + 1
