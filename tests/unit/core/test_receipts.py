"""Messages that come back to the process that holds them, or is done with them."""

import itertools
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import factories
from support.factories import TIMEOUT, every_queue

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.held import MARGIN_SECONDS, Arrival, Held, Past
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse
from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, UnavailableError
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

NOW = 1000.0
INTERVAL = 40.0
QUEUE, OTHER = map(factories.sqs_queue, ("q", "other"))
ERRORS = [None, UnavailableError("SQS is out"), ReceiptHandleInvalidError("the handle is invalid")]
handles = itertools.count()


def delivery(message_id, now=NOW, queue=QUEUE):
    return factories.delivery(queue, handle=f"h{next(handles)}", now=now, message_id=message_id)


@pytest.fixture
def core():
    return Held(every_queue(TIMEOUT, INTERVAL), TIMEOUT)


def receive(core, message_id, now=NOW, queue=QUEUE):
    one = delivery(message_id, now, queue)
    ((arrival, _),) = core.receive([one], now)
    return arrival, one


def finish(core, message_id, now=NOW):
    arrival, one = receive(core, message_id, now)
    assert arrival is Arrival.NEW
    core.settle(one, Delete(), now)


def test_messages_of_other_queues_are_others(core):
    assert receive(core, "m")[0] is Arrival.NEW
    assert receive(core, "m", queue=OTHER)[0] is Arrival.NEW


def test_a_message_that_was_kept_is_new_when_it_comes_back(core):
    _, first = receive(core, "m")
    core.settle(first, Hide(5), NOW)
    arrival, second = receive(core, "m", NOW + 5)
    assert (arrival, second.held, core.of(None)) == (Arrival.NEW, True, [second])


def test_what_was_finished_is_remembered_while_it_can_come_back_however_many_follow_and_then_forgotten(core):
    _, long = receive(core, "long")
    long.deadline = NOW + 3 * TIMEOUT  # as its task asked
    core.settle(long, Delete(), NOW)
    finish(core, "m")
    for number in range(20_000):
        finish(core, f"m{number}")
    now = NOW + TIMEOUT + 1
    assert receive(core, "m", now)[0] is Arrival.FINISHED
    assert receive(core, "long", now + 2 * TIMEOUT)[0] is Arrival.FINISHED
    now += 3 * TIMEOUT + MARGIN_SECONDS + 1
    finish(core, "another", now)
    assert receive(core, "m0", now)[0] is Arrival.NEW
    assert len(core._past[Past.FINISHED]) == 1


def test_what_an_extension_in_flight_hid_after_its_end_is_known_as_finished_when_it_comes_back(core):
    receive(core, "m")
    (extension,) = core.take_due(NOW + 80)
    core.settle(extension.delivery, Delete(), NOW + 110)
    returns = NOW + 110 + TIMEOUT  # SQS carried out the extension last
    finish(core, "another", returns)
    assert receive(core, "m", returns)[0] is Arrival.FINISHED


def test_what_was_finished_is_not_forgotten_sooner_because_another_was_hidden_for_long(core):
    finish(core, "m")
    _, long = receive(core, "long")
    long.deadline = NOW + 5000
    core.settle(long, Delete(), NOW)
    assert receive(core, "m", NOW + TIMEOUT)[0] is Arrival.FINISHED


def test_what_could_not_be_deleted_is_known_as_finished_for_longer(core):
    _, one = receive(core, "m")
    core.settle(one, Delete(), NOW)
    core.remember(Past.UNDELETED, one, NOW)
    later = NOW + VISIBILITY_HORIZON_SECONDS - 1
    finish(core, "another", later)
    assert receive(core, "m", later)[0] is Arrival.FINISHED


def test_what_was_given_up_is_remembered_for_as_long_as_it_can_come_back_however_many_finish(core):
    one, elsewhere = delivery("m"), delivery("m", queue=OTHER)
    assert core.remember(Past.GIVEN_UP, one, NOW)
    for number in range(20_000):
        finish(core, f"m{number}")
    core.remember(Past.GIVEN_UP, delivery("another"), NOW + VISIBILITY_HORIZON_SECONDS - 1)
    assert core.remembers(Past.GIVEN_UP, one)
    assert not core.remembers(Past.GIVEN_UP, elsewhere)
    assert not core.remembers(Past.REJECTED, one)
    core.remember(Past.GIVEN_UP, delivery("a third"), NOW + VISIBILITY_HORIZON_SECONDS + 1)
    assert not core.remembers(Past.GIVEN_UP, one)


@pytest.mark.parametrize("settlement", [Hide(5), Lapse(), RELEASE])
def test_what_was_settled_and_not_deleted_is_known_as_kept(core, settlement):
    _, one = receive(core, "m")
    assert not core.remembers(Past.KEPT, one)
    core.settle(one, settlement, NOW)
    assert core.remembers(Past.KEPT, one)


def test_what_was_rejected_is_new_once(core):
    assert [core.remember(Past.REJECTED, delivery("m"), NOW) for _ in range(3)] == [True, False, False]


class ComingBack(RuleBasedStateMachine):
    """Messages are received, run, extended, lost and settled, in any order, and come back at any time."""

    def __init__(self):
        super().__init__()
        self.now = NOW
        self.leases = LeaseTable()
        self.core = Held(every_queue(TIMEOUT, INTERVAL), TIMEOUT)
        self.core.leases = self.leases
        self.held = {}  # message: its delivery
        self.receipts = {}  # message: the latest receipt handle
        self.finished = {}  # message: until when it is remembered at the least
        self.carried_out, self.expected = [], []
        self.in_flight = []  # extensions

    def teardown(self):
        for end in self.leases._pipe:
            os.close(end)

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.held)))

    @rule(message=st.sampled_from("abcde"))
    def receive(self, message):
        arrival, one = receive(self.core, message, self.now)
        known = self.now <= self.finished.get(message, -1.0)
        if message in self.held:
            assert arrival is Arrival.HELD
        elif known or arrival is Arrival.FINISHED:
            assert (arrival, message in self.finished) == (Arrival.FINISHED, True)
            self.core.settle(one, Delete(), self.now)
            return
        else:
            assert arrival is Arrival.NEW
            self.held[message] = one
        self.receipts[message] = one.handle

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["start", "dispatch"]))
    def run(self, data, how):
        one = self.held[self.pick(data)]
        may = one.state is not State.COPYING
        begun = self.core.begin(one, self.now) if how == "start" else None
        assert (self.core.begin(one, None) if begun is None else begun) is may

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def copy(self, data):
        one = self.held[self.pick(data)]
        was_copied = one.state is State.COPYING
        assert self.core.claim(one, self.now) is not was_copied

    @precondition(lambda self: self.held)
    @rule(data=st.data(), settlement=st.sampled_from([Delete(), Hide(7), RELEASE]), old=st.booleans())
    def settle(self, data, settlement, old):
        message = self.pick(data)
        one = self.held[message]
        copied = one.state is State.COPYING
        if old:
            assert not self.core.settle(one, settlement, self.now, receipt="older", copied=copied)
            return
        del self.held[message]
        assert not self.core.settle(one, settlement, self.now, copied=not copied), "it has one writer"
        assert self.core.settle(one, settlement, self.now, copied=copied)
        assert not self.core.settle(one, Delete(), self.now, copied=copied), "the first settlement counts"
        self.expected.append((one, settlement))
        if one in [each.delivery for each in self.in_flight] and settlement != Delete():
            assert one.waiting == settlement, "no extension after the end"
        else:
            self.carried_out.append((one, settlement))
        if settlement == Delete():
            self.finished[message] = self.now + TIMEOUT + MARGIN_SECONDS

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.integers(1, 600))
    def want(self, data, seconds):
        self.core.request_extension(self.held[self.pick(data)], self.now + seconds, self.now)

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds):
        self.now += seconds
        while due := self.core.take_due(self.now):
            for each in due:
                assert each.delivery.held
                assert each.handle == each.delivery.handle
                assert not each.seconds or each.delivery.deadline > self.now, "no change after the deadline"
            self.in_flight += due

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def extension_returns(self, data, error):
        extension = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(extension)
        ended = self.core.answered(extension, error if extension.seconds else None, self.now, self.now)
        assert ended.held is (extension.delivery.held and extension.handle == extension.delivery.handle)
        if ended.waiting is not None:
            self.carried_out.append((extension.delivery, ended.waiting))

    @invariant()
    def each_message_is_held_once_under_its_newest_receipt(self):
        assert set(self.core.of(None)) == set(self.held.values())
        assert all(one.handle == self.receipts[message] for message, one in self.held.items())

    @invariant()
    def each_settlement_is_carried_out_once(self):
        waiting = [(one, one.waiting) for one, _ in self.expected if one.waiting is not None]
        assert len(waiting) == self.core.postponed
        assert sorted(map(repr, [*self.carried_out, *waiting])) == sorted(map(repr, self.expected))

    @invariant()
    def what_is_held_is_extended_unless_it_is_lost(self):
        extending = [each.delivery for each in self.in_flight]
        for one in self.held.values():
            assert (one in extending) is one.extending
            assert one.lost or one.extending or one.bucket is not None
        assert all(one.bucket is None for one, _ in self.expected)

    @invariant()
    def each_run_has_its_row_and_no_other_has(self):
        ran = [one for one in self.held.values() if one.state in {State.DISPATCHED, State.RUNNING}]
        assert {one.lease.key for one in ran} == set(self.leases._taken)
        for one in ran:
            assert (one.lease.deadline, one.lease.lost) == (one.deadline, one.lost)
        assert all(one.lease is None for one in self.held.values() if one not in ran)


TestComingBack = ComingBack.TestCase
TestComingBack.settings = settings(max_examples=60, stateful_step_count=40)
