"""What is held, who may write about it, and that there is one writer a delivery."""

from __future__ import annotations

import gc
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.hold.ledger import RETRY_FLOOR_SECONDS, Ledger
from celery_sqs_visibility.delivery.lease_table import REQUESTED, LeaseTable
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Hide, Release
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

NOW = 1000.0
TIMEOUT = 120
INTERVAL = 40.0
SQS = FakeSQS()
QUEUES = [Queue(name, SQS.create_queue(name, {}, {}), SQS) for name in "ab"]
number = itertools.count()


def delivery(now=NOW, queue=QUEUES[0], timeout=TIMEOUT):
    handle = f"h{next(number)}"
    return Delivery(queue, handle, Facts(queue.name, handle, 1, 0), now, now + timeout, None)


@pytest.fixture
def ledger(leases):
    return Ledger(TIMEOUT, INTERVAL, leases)


@pytest.fixture
def held(ledger):
    one = delivery()
    ledger.add([one])
    return one


@pytest.fixture
def leases():
    """The table that running tasks see."""
    leases = LeaseTable()
    yield leases
    for end in leases._pipe:
        os.close(end)


@pytest.fixture
def running(leases):
    """`running(interval=40)`: a ledger, and what runs in it."""

    def running(interval=INTERVAL):
        ledger, one = Ledger(TIMEOUT, interval, leases), delivery()
        ledger.add([one])
        ledger.start(one, NOW)
        return ledger, one

    return running


def request(ledger, one, until, now):
    """As the task writes it down, and the lease table passes it on."""
    one.lease._cells[one.lease._first + REQUESTED] = until
    ledger.request_extension(one, until, now)


def take(ledger, now):
    """What is to be extended, and what is lost, as the heartbeat tells them apart."""
    due = [entry for batch in iter(lambda: ledger.take_due(now), []) for entry in batch]
    lost = [one for one, _ in due if one.deadline <= now]
    for one, seconds in due:
        if one in lost:
            assert seconds == 0
            ledger.refused(one)
    return [one for one, _ in due if one not in lost], lost


def test_what_is_held_is_known_by_its_handle(ledger, held):
    assert ledger.get(held.handle) is held
    assert ledger.holds(held)
    assert len(ledger) == 1
    assert ledger.get("another") is None


def test_what_was_settled_is_known_as_long_as_somebody_refers_to_it_and_does_not_start(ledger, held):
    assert ledger.settle(held, Delete()) == (True, True)
    assert not ledger.holds(held)
    assert len(ledger) == 0
    assert ledger.get(held.handle) is held
    assert not ledger.start(held, NOW)
    assert ledger.settle(held, Release()) == (False, False)


@pytest.mark.parametrize("end", ["settled", "replaced"])
def test_handles_are_forgotten_with_their_deliveries(ledger, held, end):
    one = delivery()
    handle = one.handle
    ledger.add([one])
    assert ledger.settle(one, Release()) if end == "settled" else ledger.supersede(one, held)
    del one
    gc.collect()
    assert ledger.get(handle) is None


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
    assert ledger.extended(held, NOW + 200) == (False, Hide(5))
    assert ledger.next_extension() is None


@pytest.mark.parametrize("settlement", [Delete(), DeadLetter("broken", "body", otherwise=Hide(5))])
def test_what_deletes_the_message_does_not_wait_for_an_extension(ledger, held, settlement):
    take(ledger, NOW + 80)
    assert ledger.settle(held, settlement) == (True, True)
    assert ledger.wait_for_extensions(0)
    assert ledger.extended(held, NOW + 200) == (False, None)
    assert ledger.next_extension() is None


def test_what_is_done_in_place_of_a_dead_letter_waits_for_an_extension(ledger, held):
    take(ledger, NOW + 80)
    ledger.settle(held, DeadLetter("broken", "body", otherwise=Hide(5)))
    assert ledger.postponed(held, Hide(5))
    assert ledger.extended(held, NOW + 200) == (False, Hide(5))
    assert not ledger.postponed(held, Hide(5))


@pytest.mark.parametrize("ending", ["extended", "not_extended", "refused"])
def test_a_settlement_that_waited_is_handed_back_once_however_the_extension_ended(ledger, held, ending):
    take(ledger, NOW + 80)
    ledger.settle(held, Release())
    arguments = () if ending == "refused" else (NOW + 85,)
    assert getattr(ledger, ending)(held, *arguments) == (False, Release())
    assert held.waiting is None
    assert not held.extending


def test_a_second_settlement_does_not_take_the_place_of_the_one_that_waits(ledger, held):
    take(ledger, NOW + 80)
    ledger.settle(held, Hide(5))
    assert ledger.settle(held, Delete()) == (False, False)
    assert ledger.extended(held, NOW + 200) == (False, Hide(5))


def test_an_extended_delivery_falls_due_again_and_not_while_it_is_being_extended(ledger, held):
    take(ledger, NOW + 80)
    assert take(ledger, NOW + 119) == ([], [])
    assert ledger.extended(held, NOW + 200) == (True, None)
    assert held.deadline == NOW + 200
    assert take(ledger, NOW + 160) == ([held], [])


def test_a_delivery_whose_deadline_passed_is_lost_and_left_alone(ledger, held):
    assert take(ledger, NOW + TIMEOUT) == ([], [held])
    assert held.lost
    assert take(ledger, NOW + 10 * TIMEOUT) == ([], [])
    assert ledger.settle(held, Delete()) == (True, True)


def test_a_refused_handle_is_lost_and_left_alone(ledger, held):
    take(ledger, NOW + 80)
    assert ledger.refused(held) == (True, None)
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
    assert ledger.next_extension() >= now + min(RETRY_FLOOR_SECONDS, left) - 1e-6


@given(st.integers(1, VISIBILITY_HORIZON_SECONDS), st.floats(0.05, 0.95), st.floats(1, 10_000))
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


@given(st.floats(0, VISIBILITY_HORIZON_SECONDS - 1), st.floats(0, 60))
def test_an_extension_never_reaches_beyond_the_horizon_nor_shortens_a_lease(elapsed, left):
    one = delivery()
    now = NOW + elapsed
    one.deadline = now + left
    seconds = Ledger(TIMEOUT, INTERVAL).extension(one, now)
    assert now + max(seconds, 0) < NOW + VISIBILITY_HORIZON_SECONDS
    assert seconds <= 0 or now + seconds > one.deadline


def test_what_did_not_start_is_told_in_the_order_of_arrival(ledger):
    deliveries = [delivery() for _ in range(4)]
    ledger.add(deliveries)
    ledger.start(deliveries[1], NOW)
    ledger.settle(deliveries[2], Delete())
    assert ledger.unstarted() == [deliveries[0], deliveries[3]]


class TestRequests:
    """A task asks for its message to stay hidden until some instant."""

    @pytest.mark.parametrize(
        ("interval", "until", "asks_for"),
        [(INTERVAL, 600, 590), (INTERVAL, 125, TIMEOUT), (0, 125.5, 116)],
        ids=["longer", "less than the visibility timeout", "without a heartbeat"],
    )
    def test_a_request_is_due_at_once(self, running, interval, until, asks_for):
        ledger, one = running(interval)
        assert ledger.request_extension(one, NOW + until, NOW + 10)
        assert take(ledger, NOW + 10) == ([one], [])
        assert ledger.extension(one, NOW + 10) == asks_for

    def test_without_a_heartbeat_what_is_hidden_for_longer_is_left_alone_and_answered(self, running):
        ledger, one = running(interval=0)
        request(ledger, one, NOW + 60, NOW + 10)
        take(ledger, NOW + 10)
        assert ledger.extension(one, NOW + 10) == 0
        ledger.not_extensible(one, NOW + 10)
        assert one.lease.requested_deadline == 0
        assert ledger.next_extension() == one.deadline

    def test_a_request_is_answered_when_it_is_granted(self, running):
        ledger, one = running()
        request(ledger, one, NOW + 600, NOW + 10)
        take(ledger, NOW + 10)
        ledger.extended(one, NOW + 600)
        assert (one.lease.requested_deadline, one.lease.deadline) == (0, NOW + 600)
        assert ledger.next_extension() > NOW + 500

    def test_a_request_waits_for_the_extension_in_flight_and_is_due_after_it(self, running):
        ledger, one = running()
        take(ledger, NOW + 80)
        request(ledger, one, NOW + 600, NOW + 80)
        assert take(ledger, NOW + 81) == ([], [])
        ledger.extended(one, NOW + 200)
        assert one.lease.requested_deadline == NOW + 600
        assert take(ledger, NOW + 81) == ([one], [])
        assert ledger.extension(one, NOW + 81) == 519

    def test_a_request_that_came_while_nothing_was_to_be_extended_is_due_after_all(self, running):
        ledger, one = running(interval=0)
        ledger.request_extension(one, NOW + 20, NOW)
        take(ledger, NOW)
        assert ledger.extension(one, NOW) == 0
        ledger.request_extension(one, NOW + 600, NOW)
        ledger.not_extensible(one, NOW)
        assert take(ledger, NOW) == ([one], [])

    def test_a_request_is_tried_again_while_it_fails(self, running):
        ledger, one = running()
        request(ledger, one, NOW + 600, NOW + 10)
        take(ledger, NOW + 10)
        ledger.not_extended(one, NOW + 11)
        assert one.lease.requested_deadline == NOW + 600
        assert NOW + 11 < ledger.next_extension() < one.deadline
        assert take(ledger, ledger.next_extension()) == ([one], [])
        assert ledger.extension(one, NOW + 50) == 550

    @pytest.mark.parametrize("ending", ["refused", "lapsed"])
    def test_a_request_is_answered_by_the_loss(self, running, ending):
        ledger, one = running()
        request(ledger, one, NOW + 600, NOW + 10)
        if ending == "refused":
            take(ledger, NOW + 10)
            ledger.refused(one)
        else:
            take(ledger, NOW + TIMEOUT)
        assert one.lease.requested_deadline == 0
        assert one.lease.lost

    @given(
        st.floats(0, VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS - 2),
        st.floats(0, 2 * VISIBILITY_HORIZON_SECONDS),
    )
    def test_a_request_beyond_the_horizon_is_answered_with_what_there_is(self, elapsed, seconds):
        ledger, now = Ledger(TIMEOUT, 0), NOW + elapsed
        one = delivery()
        one.deadline = max(one.deadline, now + 1)
        ledger.add([one])
        ledger.request_extension(one, now + seconds, now)
        requests = 0
        while one in take(ledger, now)[0]:
            extension = ledger.extension(one, now)
            if extension == 0:
                ledger.not_extensible(one, now)
                break
            requests += 1
            ledger.extended(one, now + extension)
            now += 0.05
        assert requests <= 1
        assert one.requested_deadline == 0
        assert one.deadline <= one.horizon - HORIZON_MARGIN_SECONDS

    def test_what_is_lost_is_not_extended(self, running):
        ledger, one = running()
        take(ledger, NOW + TIMEOUT)
        assert ledger.request_extension(one, NOW + 600, NOW + TIMEOUT)
        assert ledger.next_extension() is None

    def test_nor_is_what_was_settled(self, running):
        ledger, one = running()
        ledger.settle(one, Delete())
        assert not ledger.request_extension(one, NOW + 600, NOW)


@given(st.floats(0, 30))
def test_what_is_hidden_up_to_the_horizon_is_not_extended_again(seconds):
    ledger, one = Ledger(TIMEOUT, INTERVAL), delivery()
    now = one.horizon - HORIZON_MARGIN_SECONDS - 60
    one.deadline = now + 20
    ledger.add([one])
    ledger.take_due(now)
    ledger.extended(one, now + ledger.extension(one, now))
    assert ledger.extension(one, now + seconds) == 0


class TestLeases:
    """What a task can see of it."""

    def test_what_does_not_run_has_no_lease(self, leases, ledger, held):
        assert held.lease is None

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    def test_what_begins_to_run_has_one(self, leases, ledger, held, begin):
        assert getattr(ledger, begin)(held, *([NOW] if begin == "start" else []))
        assert held.lease.deadline == held.deadline
        assert held.lease_key == held.lease.key

    def test_what_was_dispatched_keeps_it_when_it_starts(self, running):
        ledger, one = running()
        key = one.lease_key
        ledger.dispatch(one)
        assert one.lease_key == key

    def test_what_was_settled_gets_none(self, leases, ledger, held):
        ledger.settle(held, Release())
        assert not ledger.start(held, NOW)
        assert held.lease_key is None
        assert leases._taken == {}

    def test_where_no_worker_opened_a_table_there_is_none(self):
        ledger, held = Ledger(TIMEOUT, INTERVAL), delivery()
        ledger.add([held])
        assert ledger.start(held, NOW)
        assert held.lease_key is None

    def test_with_a_full_table_it_runs_without(self, leases, ledger, held, monkeypatch):
        monkeypatch.setattr(leases, "take", lambda *_: None)
        assert ledger.start(held, NOW)
        take(ledger, NOW + 80)
        ledger.extended(held, NOW + 200)
        assert ledger.settle(held, Delete()) == (True, True)

    def test_it_is_told_of_an_extension(self, running):
        ledger, one = running()
        take(ledger, NOW + 80)
        ledger.extended(one, NOW + 200)
        assert one.lease.deadline == NOW + 200

    def test_it_is_told_of_the_loss(self, running):
        ledger, one = running()
        take(ledger, NOW + TIMEOUT)
        assert one.lease.lost

    def test_it_is_over_when_the_delivery_is_settled(self, running, leases):
        ledger, one = running()
        lease = one.lease
        ledger.settle(one, Delete())
        assert lease.over
        assert leases._taken == {}

    @pytest.mark.parametrize("ending", ["extended", "refused"])
    def test_an_extension_that_returns_late_tells_the_next_lease_of_the_row_nothing(self, running, ending):
        ledger, one = running()
        take(ledger, NOW + 80)
        ledger.settle(one, Hide(5))
        next_one = delivery(NOW + 80)
        ledger.add([next_one])
        ledger.start(next_one, NOW)
        assert next_one.lease.key[0] == 0
        getattr(ledger, ending)(one, *([NOW + 999] if ending == "extended" else []))
        assert (next_one.lease.deadline, next_one.lease.lost) == (next_one.deadline, False)


class TestSuperseding:
    """A message came back: its new delivery takes the place of the old."""

    @pytest.fixture
    def superseded_by(self, ledger):
        one = delivery(NOW + TIMEOUT)
        ledger.add([one])
        return one

    def test_the_newer_delivery_takes_over_what_the_old_one_was(self, leases, ledger, held, superseded_by):
        ledger.start(held, NOW)
        ledger.dispatch(held)
        lease = held.lease
        take(ledger, NOW + TIMEOUT)
        assert lease.lost
        held.on_lost = on_lost = object()
        held.acknowledged_early = True
        assert ledger.supersede(held, superseded_by)
        assert ledger.all() == [superseded_by]
        assert (superseded_by.started, superseded_by.dispatched, superseded_by.on_lost) == (
            True,
            True,
            on_lost,
        )
        assert superseded_by.acknowledged_early
        assert held.lease_key == lease.key
        assert (lease.deadline, lease.lost) == (superseded_by.deadline, False)

    def test_the_old_handle_leads_to_it(self, ledger, held, superseded_by):
        ledger.supersede(held, superseded_by)
        assert ledger.get(held.handle).current is superseded_by

    def test_what_was_settled_is_not_superseded(self, ledger, held, superseded_by):
        ledger.settle(held, Hide(5))
        assert not ledger.supersede(held, superseded_by)
        assert held.current is held

    def test_a_settlement_that_waits_is_not_overtaken(self, ledger, held, superseded_by):
        take(ledger, NOW + 80)
        ledger.settle(held, Hide(5))
        assert not ledger.supersede(held, superseded_by)
        assert ledger.extended(held, NOW + 200) == (False, Hide(5))

    @pytest.mark.parametrize("ending", ["extended", "not_extended", "not_extensible", "refused"])
    def test_an_extension_of_the_old_handle_in_flight_changes_nothing(
        self, leases, ledger, held, superseded_by, ending
    ):
        ledger.start(held, NOW)
        assert held in take(ledger, NOW + 80)[0]
        ledger.extended(superseded_by, superseded_by.deadline)
        ledger.supersede(held, superseded_by)
        arguments = () if ending == "refused" else (NOW + 85,)
        assert getattr(ledger, ending)(held, *arguments) == (False, None)
        assert (superseded_by.lease.deadline, superseded_by.lease.lost) == (superseded_by.deadline, False)
        assert not superseded_by.lost
        assert take(ledger, superseded_by.deadline - 1) == ([superseded_by], [])

    def test_a_request_is_handed_on(self, leases, ledger, held, superseded_by):
        ledger.start(held, NOW)
        request(ledger, held, NOW + 600, NOW)
        ledger.supersede(held, superseded_by)
        assert (held.requested_deadline, superseded_by.requested_deadline) == (0, NOW + 600)
        assert superseded_by.lease.requested_deadline == NOW + 600
