"""What is held, who may write about it, and that there is one writer a delivery."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_sqs_visibility.aws.memory import MemorySQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.events import Facts
from celery_sqs_visibility.delivery.ledger import RETRY_FLOOR, Ledger
from celery_sqs_visibility.delivery.model import Delete, Delivery, Hide, Release
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, VISIBILITY_HORIZON

NOW = 1000.0
TIMEOUT = 120
INTERVAL = 40.0
SQS = MemorySQS()
QUEUES = [Queue(name, SQS.create_queue(name, {}, {}), SQS) for name in "ab"]
number = itertools.count()


def delivery(now=NOW, queue=QUEUES[0], timeout=TIMEOUT):
    handle = f"h{next(number)}"
    return Delivery(queue, handle, Facts(queue.name, handle, 1, 0), now, now + timeout, None)


@pytest.fixture
def ledger():
    return Ledger(TIMEOUT, INTERVAL)


@pytest.fixture
def held(ledger):
    one = delivery()
    ledger.add([one])
    return one


def take(ledger, now):
    due, lost = ledger.take_due(now)
    return [one for deliveries in due.values() for one in deliveries], lost


def test_what_is_held_is_known_by_its_handle(ledger, held):
    assert ledger.get(held.handle) is held
    assert len(ledger) == 1
    assert ledger.get("another") is None


def test_what_is_settled_is_no_longer_held(ledger, held):
    assert ledger.settle(held, Delete()) == (True, True)
    assert ledger.get(held.handle) is None
    assert len(ledger) == 0


def test_a_second_settlement_does_nothing(ledger, held):
    ledger.settle(held, Delete())
    assert ledger.settle(held, Release()) == (False, False)


def test_an_extension_is_due_a_heartbeat_interval_before_the_deadline(ledger, held):
    assert NOW + TIMEOUT - INTERVAL - INTERVAL / 4 <= ledger.next_extension() <= NOW + TIMEOUT - INTERVAL
    assert take(ledger, NOW + 10) == ([], [])
    assert take(ledger, ledger.next_extension()) == ([held], [])


def test_a_settled_delivery_is_not_extended(ledger, held):
    ledger.settle(held, Hide(5))
    assert ledger.next_extension() is None
    assert take(ledger, NOW + 100) == ([], [])


def test_a_late_extension_never_overwrites_a_retry_delay(ledger, held):
    take(ledger, NOW + 80)
    assert ledger.settle(held, Hide(5)) == (True, False)
    assert ledger.extended(held, NOW + 200) == Hide(5)
    assert ledger.next_extension() is None


@pytest.mark.parametrize("ending", ["extended", "not_extended", "refused"])
def test_a_settlement_that_waited_is_handed_back_once_however_the_extension_ended(ledger, held, ending):
    take(ledger, NOW + 80)
    ledger.settle(held, Delete())
    arguments = () if ending == "refused" else (NOW + 85,)
    assert getattr(ledger, ending)(held, *arguments) == Delete()
    assert held.waiting is None
    assert not held.extending


def test_a_second_settlement_does_not_take_the_place_of_the_one_that_waits(ledger, held):
    take(ledger, NOW + 80)
    ledger.settle(held, Hide(5))
    assert ledger.settle(held, Delete()) == (False, False)
    assert ledger.extended(held, NOW + 200) == Hide(5)


def test_an_extended_delivery_falls_due_again(ledger, held):
    take(ledger, NOW + 80)
    assert ledger.extended(held, NOW + 200) is None
    assert held.deadline == NOW + 200
    assert take(ledger, NOW + 160) == ([held], [])


def test_what_is_being_extended_is_not_taken_a_second_time(ledger, held):
    take(ledger, NOW + 80)
    assert take(ledger, NOW + 119) == ([], [])


def test_a_delivery_whose_deadline_passed_is_lost_and_left_alone(ledger, held):
    assert take(ledger, NOW + TIMEOUT) == ([], [held])
    assert held.lost
    assert take(ledger, NOW + 10 * TIMEOUT) == ([], [])
    assert ledger.settle(held, Delete()) == (True, True)


def test_a_refused_handle_is_lost_and_left_alone(ledger, held):
    take(ledger, NOW + 80)
    assert ledger.refused(held) is None
    assert held.lost
    assert ledger.next_extension() is None


def test_a_failed_extension_is_tried_again_before_the_deadline(ledger, held):
    take(ledger, NOW + 80)
    ledger.not_extended(held, NOW + 81)
    assert ledger.next_extension() < held.deadline


@given(st.floats(0, 39.9), st.floats(1, 10_000))
def test_a_failed_extension_is_not_tried_again_at_once(elapsed, origin):
    ledger = Ledger(TIMEOUT, INTERVAL)
    one = delivery(origin)
    ledger.add([one])
    ledger.take_due(origin + 80)
    now = origin + 80 + elapsed
    ledger.not_extended(one, now)
    left = one.deadline - now
    assert ledger.next_extension() >= now + min(RETRY_FLOOR, left) - 1e-6


@given(st.integers(1, VISIBILITY_HORIZON), st.floats(0.05, 0.95), st.floats(1, 10_000))
def test_what_was_just_extended_is_not_due_at_once(timeout, part, now):
    ledger = Ledger(timeout, timeout * part)
    one = delivery(now, timeout=timeout)
    ledger.add([one])
    assert ledger.next_extension() > now


def test_what_could_not_be_extended_in_time_is_told_lost(ledger, held):
    take(ledger, NOW + 80)
    ledger.not_extended(held, NOW + TIMEOUT + 5)
    assert take(ledger, NOW + TIMEOUT + 5) == ([], [held])


def test_without_a_heartbeat_nothing_is_extended_and_what_lapses_is_lost():
    ledger = Ledger(TIMEOUT, 0)
    one = delivery()
    ledger.add([one])
    assert ledger.next_extension() == one.deadline
    assert ledger.extension(one, NOW + 10) == 0
    assert take(ledger, NOW + TIMEOUT) == ([], [one])
    assert one.lost
    assert ledger.settle(one, Delete()) == (True, True)


def test_an_extension_asks_for_the_visibility_timeout(ledger, held):
    assert ledger.extension(held, NOW + 80) == TIMEOUT


@given(st.floats(0, VISIBILITY_HORIZON - 1), st.floats(0, 60))
def test_an_extension_never_reaches_beyond_the_horizon_nor_shortens_a_lease(elapsed, left):
    one = delivery()
    now = NOW + elapsed
    one.deadline = now + left
    seconds = Ledger(TIMEOUT, INTERVAL).extension(one, now)
    assert now + max(seconds, 0) < NOW + VISIBILITY_HORIZON
    assert seconds <= 0 or now + seconds > one.deadline


def test_what_did_not_start_is_told_in_the_order_of_arrival(ledger):
    deliveries = [delivery() for _ in range(4)]
    ledger.add(deliveries)
    ledger.start(deliveries[1])
    ledger.settle(deliveries[2], Delete())
    assert ledger.unstarted() == [deliveries[0], deliveries[3]]


class Holding(RuleBasedStateMachine):
    """Receiver, heartbeat and tasks at work on one ledger, in any order."""

    def __init__(self):
        super().__init__()
        self.now = NOW
        self.ledger = Ledger(TIMEOUT, INTERVAL)
        self.held = []
        self.extending = []
        self.waiting = {}
        self.settled = set()

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 12), age=st.floats(0, 1))
    def receive(self, queue, count, age):
        received = [delivery(self.now - age, queue) for _ in range(count)]
        self.ledger.add(received)
        self.held += received

    @rule(seconds=st.floats(0, 50))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def take_due(self):
        due, lost = self.ledger.take_due(self.now)
        for queue, deliveries in due.items():
            assert deliveries
            for one in deliveries:
                assert one.queue is queue
                assert one not in self.settled
                assert one not in self.extending
                assert one.deadline > self.now
            left = [one for one in self.held if one.queue is queue and one.slot is not None]
            taken = len(deliveries) + sum(one.queue is queue for one in lost)
            assert not left or taken % BATCH_ENTRIES == 0
            self.extending += deliveries
        for one in lost:
            assert one.deadline <= self.now
            assert one in self.held

    @precondition(lambda self: self.extending)
    @rule(data=st.data(), ending=st.sampled_from(["extended", "not_extended", "refused"]))
    def extension_returns(self, data, ending):
        one = data.draw(st.sampled_from(self.extending))
        self.extending.remove(one)
        arguments = {"extended": [self.now + TIMEOUT], "not_extended": [self.now], "refused": []}
        handed_back = getattr(self.ledger, ending)(one, *arguments[ending])
        assert handed_back == self.waiting.pop(one, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), settlement=st.sampled_from([Delete(), Hide(7), Release()]))
    def settle(self, data, settlement):
        one = data.draw(st.sampled_from(self.held))
        self.held.remove(one)
        self.settled.add(one)
        held, now = self.ledger.settle(one, settlement)
        assert held
        assert now == (one not in self.extending)
        if not now:
            self.waiting[one] = settlement

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def settle_again(self, data):
        one = data.draw(st.sampled_from(sorted(self.settled, key=lambda one: one.handle)))
        assert self.ledger.settle(one, Delete()) == (False, False)

    @invariant()
    def everything_held_is_in_the_wheel_or_being_extended_or_lost(self):
        for one in self.held:
            assert (one.slot is not None) + one.extending + (one.lost and not one.extending) == 1

    @invariant()
    def nothing_settled_is_in_the_wheel(self):
        assert all(one.slot is None for one in self.settled)

    @invariant()
    def nobody_forgets_whose_turn_it_is(self):
        assert len(self.ledger) == len(self.held)
        assert all(one.extending for one in self.extending)
        assert all(one.extending for one in self.waiting)


TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
