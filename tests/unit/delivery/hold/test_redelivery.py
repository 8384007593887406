"""Messages that come back to the process that holds them, or is done with them."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import factories
from support.clock import FakeClock
from support.factories import TIMEOUT, every_queue

from celery_sqs_visibility.delivery.hold.ledger import Ledger
from celery_sqs_visibility.delivery.hold.redelivery import MARGIN_SECONDS, Arrival, Past, RedeliveryIndex
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.delivery.settlements import Delete, Hide, Lapse, Release
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

INTERVAL = 40.0
QUEUE, OTHER = map(factories.sqs_queue, ("q", "other"))
handles = itertools.count()


class Holder:
    """Does as a consumer does, without threads; counts capacity, and writes down what was settled."""

    def __init__(self, redeliveries, clock, leases=None):
        self.ledger = Ledger(every_queue(TIMEOUT, INTERVAL), leases)
        self.capacity = ReceiveCapacity(0, clock)
        self.settled = []
        self._redeliveries = redeliveries
        self._clock = clock

    def receive(self, message_id, queue=QUEUE):
        """What the message is to the process, and its delivery."""
        handle, now = f"h{next(handles)}", self._clock.monotonic()
        delivery = factories.delivery(queue, self, handle=handle, now=now, message_id=message_id)
        self.capacity.received(self.capacity.reserve(queue.name, 0), 1)
        self.ledger.add([delivery])
        arrival = self._redeliveries.check(delivery)
        if arrival is Arrival.FINISHED:
            delivery.settle(Delete())
        return arrival, delivery

    def settle(self, delivery, settlement):
        if isinstance(settlement, Delete) and delivery.held:
            self._redeliveries.finish(delivery)
        held, now = self.ledger.settle(delivery, settlement)
        if held:
            self._redeliveries.remove(delivery)
            self.capacity.release(began=delivery.began)
        if now:
            self.settled.append((delivery, settlement))
        return held

    def start(self, delivery):
        return self.ledger.start(delivery, self._clock.monotonic())

    def dispatch(self, delivery):
        return self.ledger.dispatch(delivery)

    def extend(self, delivery, until):
        return self.ledger.request_extension(delivery, until, self._clock.monotonic())

    def supersede(self, delivery, superseded_by):
        if not self.ledger.supersede(delivery, superseded_by):
            return False
        self.capacity.release()
        return True


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def redeliveries(clock):
    return RedeliveryIndex(TIMEOUT, clock)


@pytest.fixture
def holder(redeliveries, clock):
    return Holder(redeliveries, clock)


def test_messages_of_other_queues_are_others(holder):
    assert holder.receive("m")[0] is Arrival.NEW
    assert holder.receive("m", OTHER)[0] is Arrival.NEW


def test_a_message_that_comes_back_before_its_settlement_was_noted_is_not_superseded(holder, redeliveries):
    _, first = holder.receive("m")
    holder.ledger.settle(first, Hide(5))
    arrival, second = holder.receive("m")
    assert arrival is Arrival.NEW
    redeliveries.remove(first)  # too late to matter: the second is held
    assert holder.receive("m")[0] is Arrival.HELD
    assert second.superseded_by is not None


def test_what_was_finished_is_remembered_while_it_can_come_back_however_many_follow_and_then_forgotten(
    holder, redeliveries, clock
):
    _, first = holder.receive("m")
    _, long = holder.receive("long")
    long.deadline = clock.monotonic() + 3 * TIMEOUT  # as its task asked
    for one in (first, long):
        one.settle(Delete())
    for number in range(20_000):
        holder.receive(f"m{number}")[1].settle(Delete())
    clock.advance(TIMEOUT + 1)
    assert holder.receive("m")[0] is Arrival.FINISHED
    clock.advance(2 * TIMEOUT)
    assert holder.receive("long")[0] is Arrival.FINISHED
    clock.advance(TIMEOUT + MARGIN_SECONDS + 1)
    holder.receive("another")[1].settle(Delete())
    assert holder.receive("m0")[0] is Arrival.NEW
    assert len(redeliveries._past[Past.FINISHED]) == 1


def test_what_was_given_up_is_remembered_for_as_long_as_it_can_come_back_however_many_finish(
    redeliveries, clock
):
    assert redeliveries.remember(Past.GIVEN_UP, QUEUE, "m")
    for number in range(20_000):
        redeliveries.remember(Past.FINISHED, QUEUE, f"m{number}")
    clock.advance(VISIBILITY_HORIZON_SECONDS - 1)
    redeliveries.remember(Past.GIVEN_UP, QUEUE, "another")
    assert redeliveries.remembers(Past.GIVEN_UP, QUEUE, "m")
    assert not redeliveries.remembers(Past.GIVEN_UP, OTHER, "m")
    assert not redeliveries.remembers(Past.REJECTED, QUEUE, "m")
    clock.advance(2)
    redeliveries.remember(Past.GIVEN_UP, QUEUE, "a third")
    assert not redeliveries.remembers(Past.GIVEN_UP, QUEUE, "m")


@pytest.mark.parametrize("settlement", [Hide(5), Lapse(), Release()])
def test_what_was_settled_and_not_deleted_is_known_as_kept(holder, redeliveries, settlement):
    _, delivery = holder.receive("m")
    assert not redeliveries.remembers(Past.KEPT, QUEUE, "m")
    delivery.settle(settlement)
    assert redeliveries.remembers(Past.KEPT, QUEUE, "m")


def test_what_was_rejected_is_new_once(redeliveries):
    told = [redeliveries.remember(Past.REJECTED, QUEUE, "m") for _ in range(3)]
    assert told == [True, False, False]


def test_what_is_held_is_known_across_consumers(holder, redeliveries, clock):
    _, first = holder.receive("m")
    first.start()
    other = Holder(redeliveries, clock)
    arrival, second = other.receive("m")
    assert arrival is Arrival.HELD
    assert second.started
    assert holder.ledger.all() == []
    assert holder.capacity.held == 0
    first.settle(Delete())
    assert other.settled == [(second, Delete())]
    assert other.capacity.held == 0


def test_two_that_come_back_at_once_may_be_checked_in_any_order(holder, redeliveries, clock):
    """The third is checked while the second has not yet taken the place of the first."""
    _, first = holder.receive("m")
    first.start()
    nested = []

    def supersede(delivery, superseded_by, original=holder.supersede):
        if not nested:
            nested.append(True)
            nested.append(holder.receive("m"))
        return original(delivery, superseded_by)

    holder.supersede = supersede
    holder.receive("m")
    arrival, third = nested[1]
    assert arrival is Arrival.HELD
    assert holder.ledger.all() == [third]
    assert first.current is third
    assert third.started
    assert holder.capacity.held == 1


class ComingBack(RuleBasedStateMachine):
    """Messages are received, run, extended, lost and settled, in any order, and come back at any time."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.leases = LeaseTable()
        self.holder = Holder(RedeliveryIndex(TIMEOUT, self.clock), self.clock, self.leases)
        self.held = {}  # message: the delivery that a task has in hand
        self.newest = {}  # message: the latest delivery of it
        self.finished = {}  # message: until when it is remembered at the least
        self.expected = []
        self.extending = []

    def teardown(self):
        for end in self.leases._pipe:
            os.close(end)

    @rule(message=st.sampled_from("abcde"))
    def receive(self, message):
        arrival, delivery = self.holder.receive(message)
        if message in self.held:
            assert arrival is Arrival.HELD
        elif self.clock.monotonic() <= self.finished.get(message, -1.0) or arrival is Arrival.FINISHED:
            assert (arrival, message in self.finished) == (Arrival.FINISHED, True)
            self.expected.append((delivery, Delete()))
            return
        else:
            assert arrival is Arrival.NEW
            self.held[message] = delivery
        self.newest[message] = delivery

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["start", "dispatch"]))
    def run(self, data, how):
        message = data.draw(st.sampled_from(sorted(self.held)))
        assert getattr(self.held[message], how)()
        assert self.held[message].lease_key is not None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), settlement=st.sampled_from([Delete(), Hide(7), Release()]))
    def settle(self, data, settlement):
        message = data.draw(st.sampled_from(sorted(self.held)))
        delivery = self.held.pop(message)
        newest = self.newest.pop(message)
        assert delivery.settle(settlement)
        assert not delivery.settle(Delete())
        if newest in self.extending and settlement != Delete():
            assert newest.waiting == settlement
        else:
            self.expected.append((newest, settlement))
        if settlement == Delete():
            self.finished[message] = self.clock.monotonic() + TIMEOUT + MARGIN_SECONDS

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.integers(1, 600))
    def want(self, data, seconds):
        message = data.draw(st.sampled_from(sorted(self.held)))
        self.held[message].extend(self.clock.monotonic() + seconds)

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        while due := self.holder.ledger.take_due(self.clock.monotonic()):
            self.extending += [delivery for delivery, _ in due]

    @precondition(lambda self: self.extending)
    @rule(data=st.data(), ending=st.sampled_from(["extended", "not_extended", "not_extensible", "refused"]))
    def extension_returns(self, data, ending):
        delivery = data.draw(st.sampled_from(self.extending))
        self.extending.remove(delivery)
        now = self.clock.monotonic()
        arguments = {"extended": [now + TIMEOUT], "refused": []}.get(ending, [now])
        _, waiting = getattr(self.holder.ledger, ending)(delivery, *arguments)
        if waiting is not None:
            self.holder.settled.append((delivery, waiting))
            self.expected.append((delivery, waiting))

    @invariant()
    def each_message_is_held_once_by_its_newest_handle(self):
        assert set(self.holder.ledger.all()) == set(self.newest.values())
        for message, delivery in self.held.items():
            assert delivery.current is self.newest[message]

    @invariant()
    def each_settlement_is_carried_out_once_on_the_newest_handle(self):
        assert self.holder.settled == self.expected

    @invariant()
    def capacity_counts_each_message_once(self):
        assert self.holder.capacity.held == len(self.held)

    @invariant()
    def each_run_has_its_row_and_no_other_has(self):
        ran = [one for one in self.newest.values() if one.started or one.dispatched]
        assert {one.lease.key for one in ran} == set(self.leases._taken)
        for one in ran:
            assert (one.lease.deadline, one.lease.lost) == (one.deadline, one.lost)
        assert all(one.lease is None for one in self.newest.values() if one not in ran)


TestComingBack = ComingBack.TestCase
TestComingBack.settings = settings(max_examples=60, stateful_step_count=40)
