"""What is held, who may write about it, and that there is one writer a delivery."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factories
from support.factories import TIMEOUT, every_queue

from celery_sqs_visibility.delivery.hold.ledger import RETRY_FLOOR_SECONDS, Ledger
from celery_sqs_visibility.delivery.lease_table import REQUESTED
from celery_sqs_visibility.delivery.settlements import DeadLetter, Delete, Hide, Lapse, Release
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

NOW = 1000.0
INTERVAL = 40.0
QUEUE = factories.sqs_queue()
LETTER = DeadLetter("broken", "body", otherwise=Hide(5))
number = itertools.count()


def delivery(now=NOW):
    return factories.delivery(QUEUE, handle=f"h{next(number)}", now=now)


@pytest.fixture
def ledger(leases):
    return Ledger(every_queue(TIMEOUT, INTERVAL), leases)


@pytest.fixture
def held(ledger):
    one = delivery()
    ledger.add([one])
    return one


@pytest.fixture
def running(leases):
    """`running(interval=40)`: a ledger, and what runs in it."""

    def running(interval=INTERVAL):
        ledger, one = Ledger(every_queue(TIMEOUT, interval), leases), delivery()
        ledger.add([one])
        ledger.start(one, NOW)
        return ledger, one

    return running


def request(ledger, one, until, now):
    """As the task writes it down, and the lease table passes it on."""
    one.lease._cells[one.lease._first + REQUESTED] = until
    assert ledger.request_extension(one, until, now)


def take(ledger, now):
    """What is to be extended, and what is lost, as the heartbeat tells them apart."""
    due = [entry for batch in iter(lambda: ledger.take_due(now), []) for entry in batch]
    lost = [one for one, _ in due if one.deadline <= now]
    for one, seconds in due:
        if one in lost:
            assert seconds == 0
            ledger.refused(one)
    return [one for one, _ in due if one not in lost], lost


def conclude(ledger, one, ending, at):
    """Its extension, which is in flight, ends like this."""
    return getattr(ledger, ending)(one, *([] if ending == "refused" else [at]))


@pytest.mark.parametrize("settlement", [Delete(), Hide(5)])
def test_what_was_settled_is_known_by_its_handle_and_neither_starts_nor_is_extended(
    ledger, leases, held, settlement
):
    assert ledger.get("another") is None
    assert (ledger.get(held.handle), held.held, len(ledger)) == (held, True, 1)
    assert ledger.settle(held, settlement) == (True, True)
    assert (ledger.get(held.handle), held.held, len(ledger)) == (held, False, 0)
    assert ledger.settle(held, Release()) == (False, False)
    assert not ledger.start(held, NOW)
    assert (held.lease_key, leases._taken) == (None, {})
    assert not ledger.request_extension(held, NOW + 600, NOW)
    assert ledger.next_extension() is None
    assert take(ledger, NOW + 100) == ([], [])


def test_what_ran_and_is_settled_is_not_known_by_its_handle_unless_it_was_superseded(ledger, held):
    newer, ran = delivery(), delivery()
    ledger.add([newer, ran])
    for one in (held, ran):
        ledger.start(one, NOW)
    ledger.supersede(held, newer)
    for one in (newer, ran):
        ledger.settle(one, Delete())
    assert (ledger.get(held.handle), ledger.get(ran.handle)) == (held, None)


def test_of_what_a_signal_handler_settles_meanwhile_only_the_handler_is_told_that_it_was_held(ledger, held):
    told = []

    class Interrupted(dict):
        def pop(self, handle, default):
            if not told:
                told.append(None)
                told.append(ledger.settle(held, Release()))
            return super().pop(handle, default)

    ledger._held = Interrupted(ledger._held)
    assert ledger.settle(held, Delete()) == (False, False)
    assert told[1] == (True, True)
    assert (len(ledger), held.held) == (0, False)


def test_no_other_thread_settles_what_counts_as_finished(ledger, held):
    """Else its message, which comes back, would be deleted, though its run was given up."""
    lapses, finished = [], []

    def finish(delivery):
        finished.append(delivery)
        other.start()
        other.join(0.01)

    other = threading.Thread(target=lambda: lapses.append(ledger.settle(held, Lapse())))
    assert ledger.settle(held, Delete(), finish) == (True, True)
    other.join()
    assert lapses == [(False, False)]
    assert ledger.settle(held, Delete(), finished.append) == (False, False)
    assert finished == [held]


def test_what_was_given_back_takes_nothing_over_from_a_delivery_whose_copies_are_sent(ledger, held):
    back = delivery()
    ledger.add([back])
    ledger.claim(held)
    ledger.settle(back, Release())
    assert not ledger.supersede(held, back)
    assert ledger.all() == [held]


@pytest.mark.parametrize("end", ["settled", "replaced"])
def test_handles_are_forgotten_with_their_deliveries(ledger, held, end):
    one = delivery()
    handle = one.handle
    ledger.add([one])
    assert ledger.settle(one, Release()) if end == "settled" else ledger.supersede(one, held)
    del one
    gc.collect()
    assert ledger.get(handle) is None


def test_an_extension_by_the_visibility_timeout_is_due_a_heartbeat_interval_before_the_deadline(ledger, held):
    assert NOW + TIMEOUT - INTERVAL - INTERVAL / 4 <= ledger.next_extension() <= NOW + TIMEOUT - INTERVAL
    assert take(ledger, NOW + 10) == ([], [])
    assert take(ledger, ledger.next_extension()) == ([held], [])
    assert ledger.extension(held, NOW + 80) == TIMEOUT


@pytest.mark.parametrize("settlement", [Hide(5), Release()])
@pytest.mark.parametrize("ending", ["extended", "not_extended", "refused"])
def test_a_settlement_waits_for_the_extension_and_is_handed_back_however_that_ended(
    ledger, held, settlement, ending
):
    take(ledger, NOW + 80)
    assert ledger.settle(held, settlement) == (True, False)
    assert ledger.settle(held, Delete()) == (False, False), "it does not take the place of the one that waits"
    assert conclude(ledger, held, ending, NOW + 200) == (False, settlement)
    assert held.waiting is None
    assert not held.extending
    assert ledger.next_extension() is None


@pytest.mark.parametrize("settlement", [Delete(), LETTER])
def test_what_deletes_the_message_does_not_wait_for_an_extension(ledger, held, settlement):
    take(ledger, NOW + 80)
    assert ledger.settle(held, settlement) == (True, True)
    assert ledger.wait_for_extensions(0)
    assert ledger.extended(held, NOW + 200) == (False, None)
    assert ledger.next_extension() is None


def test_what_is_done_in_place_of_a_dead_letter_waits_for_an_extension(ledger, held):
    take(ledger, NOW + 80)
    ledger.settle(held, LETTER)
    assert ledger.postponed(held, Hide(5))
    assert ledger.extended(held, NOW + 200) == (False, Hide(5))
    assert not ledger.postponed(held, Hide(5))


def test_an_extended_delivery_falls_due_again_and_not_while_it_is_being_extended(ledger, held):
    take(ledger, NOW + 80)
    assert take(ledger, NOW + 119) == ([], [])
    assert ledger.extended(held, NOW + 200) == (True, None)
    assert held.deadline == NOW + 200
    assert take(ledger, NOW + 160) == ([held], [])


@pytest.mark.parametrize("ending", ["refused", "lapsed"])
@pytest.mark.parametrize("asked", [False, True])
def test_what_is_lost_is_left_alone_and_its_task_told(running, ending, asked):
    ledger, one = running()
    if asked:
        request(ledger, one, NOW + 600, NOW + 10)
    if ending == "refused":
        assert take(ledger, NOW + 80) == ([one], [])
        assert ledger.refused(one) == (True, None)
    else:
        assert take(ledger, NOW + TIMEOUT) == ([], [one])
    assert one.lost
    assert (one.lease.lost, one.lease.requested_deadline) == (True, 0)
    assert ledger.request_extension(one, NOW + 600, NOW + TIMEOUT)
    assert ledger.next_extension() is None
    assert take(ledger, NOW + 10 * TIMEOUT) == ([], [])
    assert ledger.settle(one, Delete()) == (True, True)


def test_a_failed_extension_is_tried_again_and_what_could_not_be_extended_in_time_is_lost(ledger, held):
    take(ledger, NOW + 80)
    ledger.not_extended(held, NOW + 81)
    assert ledger.next_extension() < held.deadline
    assert take(ledger, ledger.next_extension()) == ([held], [])
    ledger.not_extended(held, NOW + TIMEOUT + 5)
    assert take(ledger, NOW + TIMEOUT + 5) == ([], [held])


@given(st.floats(0, 39.9), st.floats(1, 10_000))
def test_a_failed_extension_is_not_tried_again_at_once(elapsed, origin):
    ledger, one = Ledger(every_queue(TIMEOUT, INTERVAL)), delivery(origin)
    ledger.add([one])
    ledger.take_due(origin + 80)
    now = origin + 80 + elapsed
    ledger.not_extended(one, now)
    left = one.deadline - now
    assert ledger.next_extension() >= now + min(RETRY_FLOOR_SECONDS, left) - 1e-6


@given(st.integers(1, VISIBILITY_HORIZON_SECONDS), st.floats(0.05, 0.95), st.floats(1, 10_000))
def test_what_was_just_extended_is_not_due_at_once(timeout, part, now):
    ledger, one = Ledger(every_queue(timeout, timeout * part)), delivery(now)
    one.deadline = now + timeout
    ledger.add([one])
    assert ledger.next_extension() > now


def test_without_a_heartbeat_nothing_is_extended_and_what_lapses_is_lost():
    ledger, one = Ledger(every_queue(TIMEOUT, 0)), delivery()
    ledger.add([one])
    assert ledger.next_extension() == one.deadline
    assert ledger.extension(one, NOW + 10) == 0
    assert take(ledger, NOW + TIMEOUT) == ([], [one])
    assert one.lost
    assert ledger.settle(one, Delete()) == (True, True)


@given(st.floats(0, VISIBILITY_HORIZON_SECONDS - 1), st.floats(0, 60))
def test_an_extension_never_reaches_beyond_the_horizon_nor_shortens_a_lease(elapsed, left):
    one, now = delivery(), NOW + elapsed
    one.deadline = now + left
    seconds = Ledger(every_queue(TIMEOUT, INTERVAL)).extension(one, now)
    assert now + max(seconds, 0) < NOW + VISIBILITY_HORIZON_SECONDS
    assert seconds <= 0 or now + seconds > one.deadline


@given(st.floats(0, 30))
def test_what_is_hidden_up_to_the_horizon_is_not_extended_again(seconds):
    ledger, one = Ledger(every_queue(TIMEOUT, INTERVAL)), delivery()
    now = one.horizon - HORIZON_MARGIN_SECONDS - 60
    one.deadline = now + 20
    ledger.add([one])
    ledger.take_due(now)
    ledger.extended(one, now + ledger.extension(one, now))
    assert ledger.extension(one, now + seconds) == 0


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

    def test_a_request_is_tried_again_while_it_fails_and_answered_when_it_is_granted(self, running):
        ledger, one = running()
        request(ledger, one, NOW + 600, NOW + 10)
        take(ledger, NOW + 10)
        ledger.not_extended(one, NOW + 11)
        assert one.lease.requested_deadline == NOW + 600
        assert NOW + 11 < ledger.next_extension() < one.deadline
        assert take(ledger, ledger.next_extension()) == ([one], [])
        assert ledger.extension(one, NOW + 50) == 550
        ledger.extended(one, NOW + 600)
        assert (one.lease.requested_deadline, one.lease.deadline) == (0, NOW + 600)
        assert ledger.next_extension() > NOW + 500

    def test_a_request_waits_for_the_extension_in_flight_and_is_due_after_it(self, running):
        ledger, one = running()
        take(ledger, NOW + 80)
        request(ledger, one, NOW + 600, NOW + 80)
        assert take(ledger, NOW + 81) == ([], [])
        ledger.extended(one, NOW + 200)
        assert (one.lease.requested_deadline, one.lease.deadline) == (NOW + 600, NOW + 200)
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

    @given(
        st.floats(0, VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS - 2),
        st.floats(0, 2 * VISIBILITY_HORIZON_SECONDS),
    )
    def test_a_request_beyond_the_horizon_is_answered_with_what_there_is(self, elapsed, seconds):
        ledger, one, now = Ledger(every_queue(TIMEOUT, 0)), delivery(), NOW + elapsed
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


class TestLeases:
    """What a task can see of it."""

    @pytest.mark.parametrize(("first", "then"), [("start", "dispatch"), ("dispatch", "start")])
    def test_what_begins_to_run_has_one_from_then_on(self, ledger, held, first, then):
        begin = {"start": lambda: ledger.start(held, NOW), "dispatch": lambda: ledger.dispatch(held)}
        assert held.lease is None
        assert begin[first]()
        assert held.lease.deadline == held.deadline
        assert held.lease_key == (key := held.lease.key)
        assert begin[then]()
        assert held.lease_key == key

    @pytest.mark.parametrize("begin", [lambda ledger, one: ledger.start(one, NOW), Ledger.dispatch])
    def test_a_run_that_begins_just_as_its_message_is_lost_learns_it(self, ledger, held, begin):
        take(ledger, NOW + 80)
        ledger.refused(held)
        assert begin(ledger, held)
        assert held.lease.lost

    def test_a_run_whose_newer_delivery_is_lost_before_it_takes_over_learns_it(self, running):
        ledger, one = running()
        newer = delivery()
        ledger.add([newer])
        ledger.refused(newer)
        assert ledger.supersede(one, newer)
        assert newer.lease.lost

    @pytest.mark.parametrize("table", ["none", "full"])
    def test_without_a_table_or_with_a_full_one_it_runs_without(self, leases, monkeypatch, table):
        monkeypatch.setattr(leases, "take", lambda *_: None)
        ledger, one = Ledger(every_queue(TIMEOUT, INTERVAL), leases if table == "full" else None), delivery()
        ledger.add([one])
        assert ledger.start(one, NOW)
        assert one.lease_key is None
        take(ledger, NOW + 80)
        ledger.extended(one, NOW + 200)
        assert ledger.settle(one, Delete()) == (True, True)

    @pytest.mark.parametrize("ending", ["extended", "refused"])
    def test_it_is_over_with_its_delivery_whose_extension_tells_the_next_one_in_its_row_nothing(
        self, running, leases, ending
    ):
        ledger, one = running()
        lease = one.lease
        take(ledger, NOW + 80)
        ledger.settle(one, Hide(5))
        assert lease.over
        assert leases._taken == {}
        next_one = delivery(NOW + 80)
        ledger.add([next_one])
        ledger.start(next_one, NOW)
        assert next_one.lease.key[0] == 0
        conclude(ledger, one, ending, NOW + 999)
        assert (next_one.lease.deadline, next_one.lease.lost) == (next_one.deadline, False)


class TestSuperseding:
    """A message came back: its new delivery takes the place of the old."""

    @pytest.fixture
    def newer(self, ledger):
        one = delivery(NOW + TIMEOUT)
        ledger.add([one])
        return one

    def test_the_newer_delivery_takes_over_what_the_old_one_was(self, ledger, held, newer):
        ledger.start(held, NOW)
        ledger.dispatch(held)
        lease = held.lease
        take(ledger, NOW + TIMEOUT)
        assert lease.lost
        held.on_lost = on_lost = object()
        held.acknowledged_early = True
        assert ledger.supersede(held, newer)
        assert ledger.all() == [newer]
        assert ledger.get(held.handle).current is newer
        assert (newer.started, newer.dispatched, newer.on_lost) == (True, True, on_lost)
        assert newer.acknowledged_early
        assert held.lease_key == lease.key
        assert (lease.deadline, lease.lost) == (newer.deadline, False)

    @pytest.mark.parametrize(("extending", "waited"), [(False, None), (True, Hide(5))])
    def test_what_was_settled_is_not_superseded_waiting_or_not(self, ledger, held, newer, extending, waited):
        if extending:
            take(ledger, NOW + 80)
        ledger.settle(held, Hide(5))
        assert not ledger.supersede(held, newer)
        assert held.current is held
        assert ledger.extended(held, NOW + 200) == (False, waited)

    @pytest.mark.parametrize("ending", ["extended", "not_extended", "not_extensible", "refused"])
    def test_an_extension_of_the_old_handle_in_flight_changes_nothing(self, ledger, held, newer, ending):
        ledger.start(held, NOW)
        assert held in take(ledger, NOW + 80)[0]
        ledger.extended(newer, newer.deadline)
        ledger.supersede(held, newer)
        assert conclude(ledger, held, ending, NOW + 85) == (False, None)
        assert (newer.lease.deadline, newer.lease.lost) == (newer.deadline, False)
        assert not newer.lost
        assert take(ledger, newer.deadline - 1) == ([newer], [])

    def test_a_request_is_handed_on(self, ledger, held, newer):
        ledger.start(held, NOW)
        request(ledger, held, NOW + 600, NOW)
        ledger.supersede(held, newer)
        assert (held.requested_deadline, newer.requested_deadline) == (0, NOW + 600)
        assert newer.lease.requested_deadline == NOW + 600


def test_a_run_that_is_told_lost_stays_so_while_its_message_is_extended(running):
    ledger, one = running()
    assert ledger.tell_lost(one)
    ((extended, seconds),) = ledger.take_due(NOW + TIMEOUT - INTERVAL)
    ledger.extended(extended, NOW + seconds)
    assert one.lease.lost
    assert not one.lost
    ledger.settle(one, Delete())
    assert not ledger.tell_lost(one)


def test_a_run_without_a_lease_hears_nothing_of_its_inactivity(ledger, held):
    assert not ledger.tell_inactive(held)
    ledger.start(held, NOW)
    assert ledger.tell_inactive(held)
    ledger.settle(held, Delete())
    assert not ledger.tell_inactive(held)
