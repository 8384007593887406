"""What is held, who may write about it, and that there is one writer a delivery."""

import gc
import itertools
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factories
from support.factories import TIMEOUT, every_queue

from celery_sqs_visibility.core.batches import PendingSettlement
from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.endings import Ending, return_of
from celery_sqs_visibility.core.extensions import RETRY_FLOOR_SECONDS, ExtensionSchedule, extension_seconds
from celery_sqs_visibility.core.held import (
    ANSWERED_LATE,
    DEADLINE_PASSED,
    HORIZON_REACHED,
    LOOK_SECONDS,
    MARGIN_SECONDS,
    NOBODY_BEGINS_IT,
    STANDS_STILL_SECONDS,
    Arrival,
    Held,
)
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse
from celery_sqs_visibility.delivery.lease_table import INACTIVE, REQUESTED
from celery_sqs_visibility.errors import ReceiptHandleInvalidError, UnavailableError
from celery_sqs_visibility.events import Lost
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

NOW = 1000.0
INTERVAL = 40.0
QUEUE = factories.sqs_queue()
INVALID, UNANSWERED = ReceiptHandleInvalidError("the handle is invalid"), UnavailableError("SQS is out")
number = itertools.count()


def delivery(now=NOW, message_id=None, **facts):
    unique = next(number)
    return factories.delivery(
        QUEUE, handle=f"h{unique}", now=now, message_id=message_id or f"m{unique}", **facts
    )


class Core(Held):
    """What is held by one consumer, with the leases of its runs."""

    def __init__(self, leases=None, interval=INTERVAL):
        options = {QUEUE.name: every_queue(TIMEOUT, interval)(QUEUE.name)}
        super().__init__(options.__getitem__, TIMEOUT)
        self.leases, self.interval = leases, interval

    def take_in(self, now=NOW, message_id=None):
        """A delivery that is held from now on."""
        one = delivery(now, message_id)
        assert self.receive([one], now) == [(Arrival.NEW, one)]
        return one

    def run(self, now=NOW):
        one = self.take_in(now)
        assert self.begin(one, now)
        return one

    def come_back(self, one, now):
        """Its message is received once more."""
        again = delivery(now, one.facts.message_id, receive_count=one.facts.receive_count + 1)
        assert self.receive([again], now) == [(Arrival.HELD, one)]
        return again

    def ask(self, one, until, now):
        """As the task writes it down, and the lease table passes it on."""
        if one.lease is not None:
            one.lease._cells[one.lease._first + REQUESTED] = until
        self.request_extension(one, until, now)

    def due(self, now):
        """The extensions that are due, of all requests."""
        return [entry for batch in iter(lambda: self.take_due(now), []) for entry in batch]

    def beat(self, now, error=None):
        """What is due is extended, or that fails; who was, and what is lost."""
        ended = [self.answered(each, error if each.seconds else None, now, now) for each in self.due(now)]
        return [one.delivery for one in ended if one.extended], [one.delivery for one in ended if one.lost]


@pytest.fixture
def core(leases):
    return Core(leases)


@pytest.fixture
def held(core):
    return core.take_in()


@pytest.mark.parametrize("settlement", [Delete(), Hide(5)])
def test_what_was_settled_unrun_is_known_by_its_tag_and_neither_starts_nor_is_extended(
    core, leases, held, settlement
):
    assert core.get("another") is None
    assert (core.get(held.tag), held.held, len(core)) == (held, True, 1)
    assert core.settle(held, settlement, NOW)
    assert (core.get(held.tag), held.held, len(core)) == (held, False, 0)
    assert core.settle(held, RELEASE, NOW) is False
    assert core.begin(held, NOW) is False
    assert core.begin(held, None) is False
    assert (held.lease_key, leases._taken) == (None, {})
    core.request_extension(held, NOW + 600, NOW)
    assert core.next_extension() is None
    assert core.due(NOW + 100) == []


def test_what_ran_and_is_settled_is_not_known_by_its_tag(core):
    ran = core.run()
    core.settle(ran, Delete(), NOW)
    assert core.get(ran.tag) is None


def test_where_no_leases_are_made_a_delivery_runs_without_one():
    core = Held(every_queue(TIMEOUT, INTERVAL), TIMEOUT)
    one = delivery()
    core.receive([one], NOW)
    assert core.begin(one, NOW)
    assert one.lease is None


def test_what_its_task_had_hidden_for_long_is_known_as_finished_for_as_long_as_it_can_come_back(core, held):
    held.deadline = NOW + 5000
    core.settle(held, Delete(), NOW)
    core.finish(delivery(), held.deadline + MARGIN_SECONDS)
    again = delivery(held.deadline, held.facts.message_id)
    assert core.receive([again], held.deadline) == [(Arrival.FINISHED, again)]


class Full(dict):
    """It has no memory for one more."""

    def __setitem__(self, key, value):
        raise MemoryError


@pytest.mark.parametrize("lacking", ["remove", "_gone"])
def test_what_memory_lacked_for_is_settled_at_the_next_try(core, held, monkeypatch, lacking):
    with monkeypatch.context() as memory:
        if lacking == "remove":
            memory.setattr(ExtensionSchedule, "remove", Mock(side_effect=MemoryError))
        else:
            memory.setattr(core, "_gone", Full())
        with pytest.raises(MemoryError):
            core.settle(held, Delete(), NOW)
    assert core.settle(held, Delete(), NOW)
    assert (held.held, len(core)) == (False, 0)


@pytest.mark.parametrize("lacking", ["messages", "_by_tag"])
def test_a_message_that_memory_lacked_for_is_not_held_and_comes_back(core, monkeypatch, lacking):
    one = delivery()
    with monkeypatch.context() as memory:
        memory.setattr(core, lacking, Full())
        with pytest.raises(MemoryError):
            core.receive([one], NOW)
    assert len(core) == 0
    again = delivery(message_id=one.facts.message_id)
    assert core.receive([again], NOW) == [(Arrival.NEW, again)]
    assert core.settle(again, RELEASE, NOW)
    assert (len(core), core.next_extension()) == (0, None)


def test_tags_are_forgotten_with_their_deliveries(core):
    one = core.take_in()
    tag = one.tag
    assert core.settle(one, RELEASE, NOW)
    del one
    gc.collect()
    assert core.get(tag) is None


def test_what_is_held_is_told_by_consumer_in_the_order_of_arrival(core):
    first, second, third = (core.take_in() for _ in range(3))
    third.consumer = consumer = SimpleNamespace(capacity=factories.FilledCapacity())
    assert core.all() == [first, second, third]
    assert core.of(None) == [first, second]
    assert core.of(consumer) == [third]
    core.settle(third, Delete(), NOW)
    assert (core.holds_of(None), core.holds_of(consumer)) == (True, False)


@pytest.mark.parametrize("begin", ["start", "dispatch", "nothing"])
def test_copies_settle_alone_what_they_are_sent_of(core, leases, held, begin):
    if begin != "nothing":
        assert core.begin(held, NOW) if begin == "start" else core.begin(held, None)
    assert core.claim(held, NOW)
    assert (held.state, held.lease, leases._taken) == (State.COPYING, None, {})
    assert core.claim(held, NOW) is False
    assert core.begin(held, NOW) is False
    assert core.begin(held, None) is False
    assert core.settle(held, Lapse(), NOW) is False
    assert core.beat(NOW + 80) == ([held], []), "it is extended meanwhile"
    assert core.settle(held, Delete(), NOW, copied=True)
    assert core.claim(held, NOW) is False
    assert core.disclaim(held) is False


def test_while_copies_are_sent_others_have_the_place_which_is_taken_again_where_it_runs_after_all(core):
    one = delivery()
    one.consumer = consumer = Mock()
    core.receive([one], NOW)
    core.claim(one, NOW + 1)
    core.disclaim(one)
    core.settle(one, Delete(), NOW + 2)
    taken, freed = call.count(one, 1), [call.free(one, NOW + 1), call.free(one, NOW + 2)]
    assert consumer.capacity.mock_calls == [taken, freed[0], taken, freed[1]]


def test_a_settlement_is_timed_from_its_decision_and_not_from_when_copies_were_sent(core, held):
    copied = core.take_in()
    core.settle(held, Delete(), NOW + 1)
    core.claim(copied, NOW + 2)
    core.settle(copied, Delete(), NOW + 3, copied=True)
    assert (held.settled_at, copied.settled_at) == (NOW + 1, NOW + 2)


def test_what_cannot_be_copied_runs_after_all(core, leases, held):
    core.begin(held, NOW)
    assert core.disclaim(held) is False
    core.claim(held, NOW)
    assert core.disclaim(held)
    assert (held.state, held.started, held.carrier) == (State.HELD, False, None)
    assert core.begin(held, NOW)


def test_an_extension_by_the_visibility_timeout_is_due_a_heartbeat_interval_before_the_deadline(core, held):
    assert NOW + TIMEOUT - INTERVAL - INTERVAL / 4 <= core.next_extension() <= NOW + TIMEOUT - INTERVAL
    due = core.next_extension()
    assert (core.batches_due(due - 0.1), core.batches_due(due)) == (0, 1)
    assert core.due(NOW + 10) == []
    ((extended, handle, seconds),) = core.due(due)
    assert (extended, handle, seconds) == (held, held.handle, TIMEOUT)


@pytest.mark.parametrize("settlement", [Hide(5), RELEASE, Lapse()])
@pytest.mark.parametrize("error", [None, UNANSWERED, INVALID])
def test_a_settlement_waits_for_the_extension_and_is_handed_back_however_that_ended(
    core, held, settlement, error
):
    (extension,) = core.due(NOW + 80)
    assert core.settle(held, settlement, NOW + 80)
    assert (held.waiting, core.postponed) == (settlement, 1)
    assert core.settle(held, Delete(), NOW + 80) is False, "it does not take the place of the one that waits"
    ended = core.answered(extension, error, NOW + 80, NOW + 81)
    assert (ended.held, ended.waiting) == (False, settlement)
    assert (held.waiting, held.extending, core.postponed) == (None, False, 0)
    assert core.next_extension() is None


def test_each_settlement_that_waits_for_an_extension_is_counted_until_that_has_ended(core):
    for _ in range(2):
        core.take_in()
    extensions, counts = core.due(NOW + 80), []
    for each in extensions:
        core.settle(each.delivery, Hide(5), NOW + 80)
        counts.append(core.postponed)
    for each in extensions:
        core.answered(each, None, NOW + 80, NOW + 81)
        counts.append(core.postponed)
    assert counts == [1, 2, 1, 0]


def test_what_deletes_the_message_does_not_wait_for_an_extension(core, held):
    (extension,) = core.due(NOW + 80)
    assert core.settle(held, Delete(), NOW + 80)
    assert (held.waiting, core.postponed) == (None, 0)
    ended = core.answered(extension, None, NOW + 80, NOW + 81)
    assert (ended.held, ended.waiting) == (False, None)
    assert core.next_extension() is None


def test_an_extended_delivery_falls_due_again_and_not_while_it_is_being_extended(core, held):
    (extension,) = core.due(NOW + 80)
    assert core.due(NOW + 119) == []
    ended = core.answered(extension, None, NOW + 80, NOW + 81)
    assert (ended.held, ended.extended, held.deadline) == (True, True, NOW + 200)
    assert core.beat(NOW + 160) == ([held], [])


@pytest.mark.parametrize(
    ("error", "at", "reason"),
    [
        (INVALID, NOW + 81, str(INVALID)),
        (None, NOW + TIMEOUT, ANSWERED_LATE),
        (UNANSWERED, NOW + TIMEOUT, f"{DEADLINE_PASSED}: {UNANSWERED}"),
    ],
    ids=["refused", "answered late", "unanswered"],
)
@pytest.mark.parametrize("asked", [False, True])
def test_what_is_lost_is_left_alone_and_its_task_told(core, error, at, reason, asked):
    one = core.run()
    if asked:
        core.ask(one, NOW + 600, NOW + 80)
    (extension,) = core.due(NOW + 80)
    ended = core.answered(extension, error, NOW + 80, at, UNANSWERED)
    assert (ended.held, ended.lost, one.lost) == (True, reason, True)
    assert (one.lease.lost, one.lease.requested_deadline) == (True, 0)
    core.request_extension(one, NOW + 600, NOW + TIMEOUT)
    assert core.next_extension() is None
    assert core.settle(one, Delete(), NOW + TIMEOUT)


def test_a_failed_extension_is_tried_again_and_what_could_not_be_extended_in_time_is_lost(core, held):
    assert core.beat(NOW + 80, UNANSWERED) == ([], [])
    assert NOW + 80 < core.next_extension() < held.deadline
    assert core.beat(core.next_extension(), UNANSWERED) == ([], [])
    assert core.beat(NOW + TIMEOUT + 5) == ([], [held])
    assert held.lost


@given(st.floats(0, 39.9), st.floats(1, 10_000))
def test_a_failed_extension_is_not_tried_again_at_once(elapsed, origin):
    core = Core()
    one = core.take_in(origin)
    now = origin + 80 + elapsed
    core.beat(now, UNANSWERED)
    assert core.next_extension() >= now + min(RETRY_FLOOR_SECONDS, one.deadline - now) - 1e-6


@given(st.integers(1, VISIBILITY_HORIZON_SECONDS), st.floats(0.05, 0.95), st.floats(1, 10_000))
def test_what_was_just_extended_is_not_due_at_once(timeout, part, now):
    core, one = Held(every_queue(timeout, timeout * part), timeout), delivery(now)
    one.deadline = now + timeout
    core.receive([one], now)
    assert core.next_extension() > now


def test_what_its_task_has_hidden_for_long_is_extended_again_before_that_ends(core, held):
    held.deadline = NOW + 1000
    assert core.beat(NOW + 80) == ([], [])
    assert held.deadline - INTERVAL - INTERVAL / 4 <= core.next_extension() <= held.deadline - INTERVAL
    held.deadline = held.horizon - HORIZON_MARGIN_SECONDS - 1
    assert core.beat(NOW + 960) == ([], [])
    assert core.next_extension() == held.deadline, "nothing extends it beyond the horizon"


def test_without_a_heartbeat_nothing_is_extended_and_what_lapses_is_lost():
    core = Core(interval=0)
    one = core.take_in()
    assert core.next_extension() == one.deadline
    (nothing,) = core.due(NOW + TIMEOUT)
    assert core.answered(nothing, None, NOW, NOW + TIMEOUT).lost == DEADLINE_PASSED
    assert core.settle(one, Delete(), NOW + TIMEOUT)


@given(st.floats(0, VISIBILITY_HORIZON_SECONDS - 1), st.floats(0, 60))
def test_an_extension_never_reaches_beyond_the_horizon_nor_shortens_a_lease(elapsed, left):
    one, now = delivery(), NOW + elapsed
    one.deadline = now + left
    seconds = extension_seconds(one, every_queue(TIMEOUT, INTERVAL)("q"), now)
    assert now + max(seconds, 0) < NOW + VISIBILITY_HORIZON_SECONDS
    assert seconds <= 0 or now + seconds > one.deadline


@given(st.floats(0, 30))
def test_what_is_hidden_up_to_the_horizon_is_not_extended_again(seconds):
    core = Core()
    one = core.take_in()
    now = one.horizon - HORIZON_MARGIN_SECONDS - 60
    one.deadline = now + 20
    assert core.beat(now) == ([one], [])
    assert extension_seconds(one, every_queue(TIMEOUT, INTERVAL)("q"), now + seconds) == 0
    (extension,) = core.due(one.deadline)
    assert core.answered(extension, None, now, one.deadline).lost == HORIZON_REACHED


@pytest.mark.parametrize(("elapsed", "late"), [(0, 0.0), (TIMEOUT - INTERVAL, 0.0), (TIMEOUT, INTERVAL)])
def test_an_extension_is_late_from_a_heartbeat_interval_before_the_deadline_on(core, held, elapsed, late):
    assert core.lateness(held, NOW + elapsed) == late


class TestCarryingOut:
    """What is settled takes a request, unless it comes back by itself."""

    @pytest.mark.parametrize(
        ("settlement", "left", "becomes"),
        [
            (Delete(), TIMEOUT, Delete()),
            (Hide(5), TIMEOUT, Hide(5)),
            (Lapse(), TIMEOUT, None),
            (Lapse(), TIMEOUT + 1, Hide(TIMEOUT)),
        ],
        ids=["deleted", "hidden", "lapses", "lapses too late"],
    )
    def test_a_settlement_is_sent_but_for_one_that_the_visibility_timeout_carries_out(
        self, core, held, settlement, left, becomes
    ):
        held.deadline = NOW + left
        core.settle(held, settlement, NOW)
        ending = core.carry_out(held, settlement, NOW)
        if becomes is None:
            assert ending == return_of(held, settlement, NOW)
            assert core.batches.unfinished == 0
        else:
            assert (ending, core.batches.take(NOW).settlements) == (
                None,
                [PendingSettlement(held, becomes, NOW)],
            )

    @pytest.mark.parametrize(("settlement", "sent"), [(Delete(), 1), (Hide(5), 0), (Lapse(), 0)])
    def test_what_has_lapsed_is_lost_once_and_only_deleted(self, core, held, settlement, sent):
        ending = core.carry_out(held, settlement, held.deadline)
        assert (ending, held.lost) == (Ending(Lost(held.facts, DEADLINE_PASSED)), True)
        assert core.carry_out(held, settlement, held.deadline) is None
        assert core.batches.unfinished == 2 * sent


class TestLoop:
    """The loop that begins runs may stand still for good."""

    class Consumer:
        late = 0.0

        def loop_late(self, now):
            assert now > NOW
            return self.late

    @pytest.fixture
    def consumer(self):
        return self.Consumer()

    @pytest.mark.parametrize("state", ["HELD", "DISPATCHED", "RUNNING", "COPYING"])
    @pytest.mark.parametrize(
        ("late", "extends"), [(STANDS_STILL_SECONDS - 1, True), (STANDS_STILL_SECONDS, False)]
    )
    def test_what_has_not_begun_is_not_extended_any_longer(self, core, held, consumer, state, late, extends):
        held.consumer, held.state, consumer.late = consumer, State[state], late
        extended = extends or state != "HELD"
        assert core.beat(NOW + 80) == ([held] if extended else [], [])
        assert held.held

    def test_it_is_lost_at_its_deadline_and_that_says_why(self, core, held, consumer):
        held.consumer, consumer.late = consumer, STANDS_STILL_SECONDS
        looks = 0
        while (now := core.next_extension()) < held.deadline:
            assert core.beat(now) == ([], [])
            looks += 1
        (nothing,) = core.due(now)
        assert core.answered(nothing, None, now, now).lost == NOBODY_BEGINS_IT
        assert looks <= INTERVAL / LOOK_SECONDS * 1.25 + 1

    def test_once_it_comes_round_again_what_waits_is_extended(self, core, held, consumer):
        held.consumer, consumer.late = consumer, STANDS_STILL_SECONDS
        core.beat(NOW + 80)
        consumer.late = 0.0
        assert core.beat(core.next_extension()) == ([held], [])


class TestRequests:
    """A task asks for its message to stay hidden until some instant."""

    def test_its_lease_passes_a_request_on_to_the_holder(self, core):
        one = core.run()
        one.holder = Mock()
        one.lease.request(NOW + 600)
        assert one.holder.mock_calls == [call.extend(one, NOW + 600)]

    @pytest.mark.parametrize(
        ("interval", "until", "asks_for"),
        [(INTERVAL, 600, 590), (INTERVAL, 125, TIMEOUT), (0, 125.5, 116)],
        ids=["longer", "less than the visibility timeout", "without a heartbeat"],
    )
    def test_a_request_is_due_at_once(self, leases, interval, until, asks_for):
        core = Core(leases, interval)
        core.ask(core.run(), NOW + until, NOW + 10)
        assert [each.seconds for each in core.due(NOW + 10)] == [asks_for]

    def test_without_a_heartbeat_what_is_hidden_for_longer_is_left_alone_and_answered(self, leases):
        core = Core(leases, 0)
        one = core.run()
        core.ask(one, NOW + 60, NOW + 10)
        assert core.beat(NOW + 10) == ([], [])
        assert one.lease.requested_deadline == 0
        assert core.next_extension() == one.deadline

    def test_a_request_is_tried_again_while_it_fails_and_answered_when_it_is_granted(self, core):
        one = core.run()
        core.ask(one, NOW + 600, NOW + 10)
        core.beat(NOW + 10, UNANSWERED)
        assert one.lease.requested_deadline == NOW + 600
        again = core.next_extension()
        assert NOW + 10 < again < one.deadline
        (extension,) = core.due(again)
        assert again + extension.seconds >= NOW + 600
        core.answered(extension, None, again, again)
        assert (one.lease.requested_deadline, one.lease.deadline) == (0, again + extension.seconds)
        assert core.next_extension() > NOW + 500

    def test_a_request_waits_for_the_extension_in_flight_and_is_due_after_it(self, core):
        one = core.run()
        (extension,) = core.due(NOW + 80)
        core.ask(one, NOW + 600, NOW + 80)
        assert core.due(NOW + 81) == []
        core.answered(extension, None, NOW + 80, NOW + 81)
        assert (one.lease.requested_deadline, one.lease.deadline) == (NOW + 600, NOW + 200)
        assert [each.seconds for each in core.due(NOW + 81)] == [519]

    @pytest.mark.parametrize(("now", "until"), [(NOW, NOW + 600), (NOW + TIMEOUT - 0.5, NOW + TIMEOUT + 0.4)])
    def test_a_request_that_came_while_nothing_was_to_be_extended_is_due_after_all(self, leases, now, until):
        core = Core(leases, 0)
        one = core.run()
        core.ask(one, NOW + 20, now)
        (nothing,) = core.due(now)
        assert nothing.seconds == 0
        core.ask(one, until, now)
        core.answered(nothing, None, now, now)
        assert core.beat(now) == ([one], [])

    @given(
        st.floats(0, VISIBILITY_HORIZON_SECONDS - HORIZON_MARGIN_SECONDS - 2),
        st.floats(0, 2 * VISIBILITY_HORIZON_SECONDS),
    )
    def test_a_request_beyond_the_horizon_is_answered_with_what_there_is(self, elapsed, seconds):
        core, now = Core(interval=0), NOW + elapsed
        one = core.take_in()
        one.deadline = max(one.deadline, now + 1)
        core.request_extension(one, now + seconds, now)
        requests = 0
        while core.beat(now)[0]:
            requests += 1
            now += 0.05
        assert requests <= 1
        assert one.requested_deadline == 0
        assert one.deadline <= one.horizon - HORIZON_MARGIN_SECONDS


class TestLeases:
    """What a task can see of it."""

    @pytest.mark.parametrize(("first", "then"), [("start", "dispatch"), ("dispatch", "start")])
    def test_what_begins_to_run_has_one_from_then_on(self, core, leases, held, first, then):
        begin = {
            "start": lambda: core.begin(held, NOW),
            "dispatch": lambda: core.begin(held, None),
        }
        assert held.lease is None
        assert begin[first]()
        assert (held.lease.deadline, held.lease.horizon) == (held.deadline, held.horizon)
        assert held.lease_key == (key := held.lease.key)
        assert begin[then]()
        assert (held.lease_key, held.state) == (key, State.RUNNING)

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    def test_a_run_that_begins_just_as_its_message_is_lost_learns_it(self, core, leases, held, begin):
        core.beat(NOW + 80, INVALID)
        assert core.begin(held, NOW) if begin == "start" else core.begin(held, None)
        assert held.lease.lost

    @pytest.mark.parametrize("table", ["none", "full"])
    def test_without_a_table_or_with_a_full_one_it_runs_without(self, leases, monkeypatch, table):
        monkeypatch.setattr(leases, "take", lambda *_: None)
        core = Core(leases if table == "full" else None)
        one = core.run()
        assert one.lease_key is None
        assert core.beat(NOW + 80) == ([one], [])
        assert core.settle(one, Delete(), NOW + 80)

    @pytest.mark.parametrize("error", [None, INVALID])
    def test_it_is_over_with_its_delivery_whose_extension_tells_the_next_one_in_its_row_nothing(
        self, core, leases, error
    ):
        one = core.run()
        lease = one.lease
        (extension,) = core.due(NOW + 80)
        core.settle(one, Hide(5), NOW + 80)
        assert lease.over
        assert leases._taken == {}
        next_one = core.run(NOW + 80)
        assert next_one.lease.key[0] == 0
        core.answered(extension, error, NOW + 85, NOW + 85)
        assert (next_one.lease.deadline, next_one.lease.lost) == (next_one.deadline, False)

    def test_a_run_that_is_told_lost_stays_so_while_its_message_is_extended(self, core):
        one = core.run()
        assert core.tell_lost(one)
        assert core.beat(NOW + TIMEOUT - INTERVAL) == ([one], [])
        assert one.lease.lost
        assert not one.lost
        core.settle(one, Delete(), NOW + 81)
        assert core.tell_lost(one) is False

    def test_a_run_without_a_lease_hears_nothing_of_its_inactivity(self, core, leases, held):
        assert core.tell_inactive(held) is False
        core.begin(held, NOW)
        assert core.tell_inactive(held)
        assert held.lease.last_sign == INACTIVE
        core.settle(held, Delete(), NOW)
        assert core.tell_inactive(held) is False


class TestReceipts:
    """A message comes back to the process that holds it: the newer receipt takes the place of the old."""

    def test_the_delivery_goes_on_under_the_newer_receipt(self, core):
        one = core.run()
        one.on_lost = on_lost = object()
        one.acknowledged_early = True
        first, lease = one.handle, one.lease
        core.beat(NOW + TIMEOUT)
        assert lease.lost
        again = core.come_back(one, NOW + TIMEOUT)
        assert (again.held, core.of(None)) == (False, [one])
        assert (one.handle, one.deadline, one.horizon) == (again.handle, again.deadline, again.horizon)
        assert (core.get(first), core.get(one.tag)) == (one, one)
        assert (one.started, one.on_lost, one.acknowledged_early) == (True, on_lost, True)
        assert (one.lost, one.lease is lease, lease.lost) == (False, True, False)
        assert (lease.deadline, lease.horizon) == (again.deadline, again.horizon)
        assert core.due(NOW + TIMEOUT) == [], "it is not extended at once"
        assert core.beat(NOW + 2 * TIMEOUT - INTERVAL) == ([one], [])

    def test_what_is_known_of_its_payload_is_kept_and_the_receives_are_the_newer_ones(self, core, held):
        held.facts = factories.delivery(QUEUE, message_id="m", task="tasks.add", task_id="t").facts
        newer = delivery(NOW + 1, held.message_key[1], receive_count=3)
        core.receive([newer], NOW + 1)
        assert (held.facts.task, held.facts.task_id, held.facts.receive_count) == ("tasks.add", "t", 3)
        newer = delivery(NOW + 2, held.message_key[1], receive_count=4, task="tasks.sub")
        core.receive([newer], NOW + 2)
        assert (held.facts.task, held.facts.receive_count) == ("tasks.sub", 4)

    def test_the_attempt_and_eta_with_which_celery_has_it_stay(self, core, held):
        held.facts = factories.delivery(QUEUE, message_id="m", attempt=1, eta=60.0).facts
        core.receive([delivery(NOW + 1, held.message_key[1], receive_count=2, attempt=2, eta=70.0)], NOW + 1)
        assert (held.facts.attempt, held.facts.eta) == (2, 70.0)
        held.carrier = object()
        core.receive([delivery(NOW + 2, held.message_key[1], receive_count=3, attempt=3, eta=80.0)], NOW + 2)
        assert (held.facts.attempt, held.facts.eta, held.facts.receive_count) == (2, 70.0, 3)

    @pytest.mark.parametrize("error", [None, UNANSWERED, INVALID])
    def test_an_extension_of_the_older_receipt_in_flight_changes_nothing(self, core, error):
        one = core.run()
        (extension,) = core.due(NOW + 80)
        core.come_back(one, NOW + 82)
        deadline = one.deadline
        ended = core.answered(extension, error, NOW + 80, NOW + 85)
        assert (ended.delivery, ended.held, ended.extended, ended.lost) == (one, False, False, None)
        assert (one.deadline, one.lease.deadline, one.lost, one.lease.lost) == (
            deadline,
            deadline,
            False,
            False,
        )
        assert core.due(NOW + 85) == []
        assert core.beat(deadline - 1) == ([one], [])

    def test_a_settlement_waits_for_an_extension_of_the_older_receipt_too(self, core):
        one = core.run()
        (extension,) = core.due(NOW + 80)
        core.come_back(one, NOW + 82)
        core.settle(one, Hide(5), NOW + 83)
        assert core.answered(extension, INVALID, NOW + 80, NOW + 85).waiting == Hide(5)
        assert not one.lost

    def test_what_its_task_asked_for_is_asked_under_the_newer_receipt(self, core):
        one = core.run()
        core.ask(one, NOW + 600, NOW)
        core.come_back(one, NOW + 10)
        assert [each.seconds for each in core.due(NOW + 10)] == [590]
        (extension,) = core.due(NOW + 10) or [None]
        assert extension is None

    @pytest.mark.parametrize("asked", [False, True])
    def test_after_an_extension_of_the_older_one_a_request_of_the_task_is_due_at_once(self, core, asked):
        one = core.run()
        (extension,) = core.due(NOW + 80)
        core.come_back(one, NOW + 82)
        if asked:
            core.ask(one, NOW + 600, NOW + 83)
        core.answered(extension, None, NOW + 80, NOW + 85)
        assert [each.seconds for each in core.due(NOW + 85)] == ([515] if asked else [])

    def test_copies_of_it_go_on(self, core, held):
        core.claim(held, NOW)
        core.come_back(held, NOW + 10)
        assert core.settle(held, Delete(), NOW + 11, copied=True)

    @pytest.mark.parametrize(("receipt", "settles"), [("older", False), ("newer", True), (None, True)])
    def test_what_was_decided_under_an_older_receipt_does_not_settle_it(self, core, receipt, settles):
        one = core.run()
        first = one.handle
        core.come_back(one, NOW + 10)
        handle = {"older": first, "newer": one.handle, None: None}[receipt]
        assert core.settle(one, Lapse(), NOW + 11, receipt=handle) is settles

    def test_a_receipt_that_is_listed_twice_counts_once(self, core):
        one = delivery()
        twice = factories.delivery(QUEUE, handle=one.handle, message_id=one.facts.message_id)
        assert core.receive([one, twice], NOW) == [(Arrival.NEW, one), (Arrival.REPEATED, one)]
        assert (one.held, twice.held, len(core)) == (True, False, 1)
        core.settle(one, Delete(), NOW)
        assert len(core) == 0

    def test_one_that_lapsed_before_it_arrived_changes_nothing(self, core):
        """Its answer waited while the process was stopped, and another poll has brought the message since."""
        one = core.take_in(NOW + TIMEOUT)
        late = delivery(NOW, one.facts.message_id)
        assert core.receive([late], NOW + TIMEOUT) == [(Arrival.OUTDATED, one)]
        assert (late.held, one.held, one.deadline) == (False, True, NOW + 2 * TIMEOUT)

    def test_a_newer_one_counts_though_its_task_has_hidden_the_message_for_longer(self, core, held):
        held.deadline = NOW + 5000
        again = core.come_back(held, NOW + 10)
        assert (held.handle, held.deadline) == (again.handle, NOW + 10 + TIMEOUT)

    def test_of_two_with_the_same_deadline_the_one_that_arrives_last_counts(self, core, held):
        late = delivery(NOW, held.facts.message_id)
        assert core.receive([late], NOW + TIMEOUT) == [(Arrival.HELD, held)]
        assert held.handle == late.handle
