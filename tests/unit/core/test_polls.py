"""Polls of a queue as decisions: when the next is due, how long it waits, what its end means."""

import math
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import FilledCapacity, every_queue

from celery_sqs_visibility.core import polls as module
from celery_sqs_visibility.core.polls import (
    ANSWERED_AT_ONCE_SECONDS,
    HELPER_PAUSE_SECONDS,
    MAX_PARALLEL_POLLS,
    MAX_POLLS,
    NEARLY_FULL_BATCH,
    NEW_QUEUE_FAILURES,
    REFUSED_WITHIN_SECONDS,
    Failure,
    Polling,
    PollState,
    QueuePolls,
)
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    AnswerLostError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.backoff import MAX_PAUSE_SECONDS, MAX_REPLY_GRACE_SECONDS
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS
from celery_sqs_visibility.policy.polling import ATTEMPT_SECONDS, EMPTY_POLL_SECONDS, Attempts

NOW = 1000.0
LONG = 20
LATE = LONG + MAX_REPLY_GRACE_SECONDS


class World:
    """The polls of a queue, made by the test."""

    def __init__(self, name="q", prefetch_count=10, interval=60, origin="found"):
        self.clock = FakeClock()
        self.capacity = FilledCapacity(0.0, self.clock)
        self.capacity.prefetch_count = prefetch_count
        self.queue = SimpleNamespace(name=name, fifo=name.endswith(".fifo"), origin=origin)
        options = every_queue(
            polling_interval=interval, polling_interval_max=interval, wait_time_seconds=LONG
        )
        self.options = options(name)
        self.served = 0
        self.polls = self.new_polls()
        self.polls.start(self.now)

    def new_polls(self):
        return QueuePolls(self.queue, self.capacity, self.options, self.serve)

    @property
    def schedule(self):
        return self.polls.schedule

    @property
    def now(self):
        return self.clock.monotonic()

    def serve(self):
        self.served += 1

    def due(self):
        """Seconds until the next poll; `None` if that is not known."""
        due = self.polls.due(self.now)
        return None if due is None else due - self.now

    def take(self):
        return self.polls.take(self.now)

    def next(self):
        """The next poll, when it is due."""
        self.clock.advance(max(0.0, self.due()))
        return self.take()

    def bring(self, poll, *messages, after=0.0):
        """SQS answers after these seconds, and what came is held."""
        self.clock.advance(after)
        self.polls.succeeded(poll, messages, self.now)
        self.capacity.hold(len(messages), queue=self.queue.name, fifo=self.queue.fifo)
        self.polls.ended(poll, self.now)

    def fail(self, poll, error=None, after=0.0):
        self.clock.advance(after)
        failure = self.polls.failed(poll, error or UnavailableError("network"), self.now)
        self.polls.ended(poll, self.now)
        return failure

    def late(self, seconds=LATE):
        """Let time pass: the polls that are overdue now."""
        self.clock.advance(seconds)
        return self.polls.note_late(self.now)


@pytest.fixture
def world():
    return World()


def batch(number):
    return [f"m{index}" for index in range(number)]


def test_the_first_poll_is_due_at_once_and_asks_for_what_there_is_room_for():
    world = World(prefetch_count=3)
    poll = world.take()
    assert (poll.reservation.messages, poll.wait, poll.helper) == (3, LONG, False)
    assert (world.take(), world.due()) == (None, None), "one waits for messages"


def test_a_poll_that_finds_nothing_begins_the_sleep(world):
    world.bring(world.take(), after=LONG)
    assert world.due() == 60
    assert world.take() is None


def test_a_message_known_to_come_back_ends_the_sleep(world):
    world.bring(world.take(), after=LONG)
    assert world.polls.expect("m", world.now + 5)
    assert world.due() == 5
    assert not world.polls.expect("n", world.now + 50)
    world.clock.advance(5)
    world.bring(world.take(), "m")
    assert world.schedule.hidden(world.now - 5) == 1, "n"


def test_it_was_in_time_until_an_answer_is_late(world):
    assert world.polls.waits_in_time(world.now) is False
    first = world.take()
    assert world.polls.waits_in_time(first.overdue_at - 1) is True
    assert world.polls.waits_in_time(first.overdue_at) is False
    world.late()
    assert world.take() is not None
    assert world.polls.waits_in_time(world.now) is False, "the first is still late"


def test_short_intervals_between_empty_polls_are_counted_from_their_begin():
    world = World(interval=0, prefetch_count=1000)
    world.bring(world.take(), after=0.25)
    assert world.due() == EMPTY_POLL_SECONDS - 0.25
    world.bring(world.next(), *batch(10))
    world.take()
    world.bring(world.take(), after=0.25)
    assert world.schedule.next_poll() == world.now, "a helper does not wait for messages"


def test_before_the_start_and_after_the_stop_nothing_is_due(world):
    world.polls.stop(world.now)
    world.polls.start(world.now)
    assert (world.due(), world.take(), world.polls.state) == (None, None, Polling.STOPPED)


def test_one_that_never_started_leaves_the_others_their_share():
    world = World()
    other = world.new_polls()
    assert other.due(world.now) is None
    other.stop(world.now)
    assert world.capacity._queues["q"] == 1
    assert world.take().reservation.messages == 10


def test_polls_in_flight_at_the_stop_still_bring_their_messages(world):
    poll = world.take()
    world.polls.stop(world.now)
    assert not world.polls.is_over
    world.bring(poll, "a")
    assert world.polls.is_over
    assert world.capacity.held == 1


def test_what_was_asked_for_before_the_stop_others_may_ask_for(world):
    world.take()
    world.polls.stop(world.now)
    assert world.capacity.reserve("other").messages == 10


def test_a_poll_that_hangs_does_not_keep_a_stopped_queue_from_being_over(world):
    world.take()
    world.polls.stop(world.now)
    world.late()
    assert world.polls.is_over


def test_a_second_stop_takes_nothing_from_who_polls_the_queue_now(world):
    world.polls.stop(world.now)
    other = world.new_polls()
    other.start(world.now)
    asked = other.take(world.now)
    world.polls.stop(world.now)
    assert world.capacity.wait("q").reservation is None
    other.succeeded(asked, (), world.now)


# Capacity.


def test_a_poll_waits_for_capacity_and_is_told_of_it():
    world = World(prefetch_count=1)
    (held,) = world.capacity.hold(1)
    assert (world.take(), world.due(), world.served) == (None, None, 0)
    assert world.polls.late(world.now + 60) == 0
    world.capacity.release(held)
    assert (world.served, world.due()) == (1, 0)
    assert world.take().reservation.messages == 1


def test_a_stop_gives_the_capacity_back_that_a_poll_was_about_to_use():
    world = World(prefetch_count=1)
    (held,) = world.capacity.hold(1)
    world.take()
    world.capacity.release(held)
    world.polls.stop(world.now)
    assert world.capacity.reserve("other").messages == 1


@pytest.mark.parametrize("error", [UnavailableError("network"), AccessDeniedError("no"), None])
def test_an_empty_or_failed_poll_gives_its_capacity_back(world, error):
    poll = world.take()
    if error is None:
        world.bring(poll)
    else:
        world.fail(poll, error)
    world.polls.stop(world.now)
    assert world.capacity.reserve("q").messages == 10
    assert world.polls.failures == bool(error)


def test_a_message_that_is_back_skips_the_rotation_of_idle_queues():
    world = World(prefetch_count=2, interval=0)
    for name in "abcdefghijklmnopqrst":
        world.capacity.add_queue(f"another: {name}")
        world.capacity.wait(f"another: {name}")
    assert world.take() is None
    world.polls.expect("m", world.now)
    world.polls.look(world.now, world.polls.in_flight)
    assert world.take() is not None


def test_nor_does_a_poll_for_it_that_begins_just_now():
    world = World(prefetch_count=2, interval=0)
    for name in "abcdefghijklmnopqrst":
        world.capacity.add_queue(f"another: {name}")
        world.capacity.wait(f"another: {name}")
    world.polls.expect("m", world.now)
    assert world.take() is not None


@pytest.mark.parametrize("way", ["fails", "is late", "kept nothing", "ends"])
def test_another_queue_asks_at_the_instant_at_which_a_poll_leaves_capacity(way):
    world = World(prefetch_count=1)
    poll = world.take()
    other = world.capacity.wait("other")
    world.clock.advance(3)
    if way == "fails":
        world.polls.failed(poll, UnavailableError("network"), world.now)
    elif way == "is late":
        world.late()
    else:
        world.polls.succeeded(poll, ["a"], world.now)
        assert other.reservation is None, "a message came, which is being taken"
        world.clock.advance(1)
        (world.polls.ended if way == "ends" else world.polls.taken)(poll, world.now)
    assert other.reservation.since == world.now


@pytest.mark.parametrize("way", ["stop", "pause"])
@pytest.mark.parametrize("served", [False, True])
def test_a_queue_that_is_not_polled_any_more_waits_for_no_capacity(way, served):
    world = World(prefetch_count=1)
    (held,) = world.capacity.hold(1)
    world.take()
    other = world.capacity.wait("other")
    world.clock.advance(3)
    if served:
        world.capacity.release(held)
        assert (world.served, other.reservation) == (1, None)
    if way == "stop":
        world.polls.stop(world.now)
    else:
        world.polls.pause(world.now + 10, world.now)
        assert world.take() is None
    if not served:
        world.capacity.release(held)
    assert other.reservation.since == world.now
    assert not world.capacity.waiters


def test_capacity_is_asked_for_when_the_poll_begins():
    world = World(prefetch_count=1000)
    world.clock.advance(3)
    world.bring(world.take(), *batch(10))
    world.clock.advance(3)
    long, helper = world.take(), world.take()
    assert [long.reservation.since, helper.reservation.since] == [world.now] * 2
    assert world.served == 0, "it had not to wait"


def test_only_where_no_poll_waits_is_a_message_that_is_back_told_to_the_capacity(world, monkeypatch):
    told = []
    monkeypatch.setattr(world.capacity, "expect", lambda *told_of: told.append(told_of))
    world.polls.expect("m", world.now)
    poll = world.take()
    told.clear()
    world.polls.look(world.now, world.polls.in_flight)
    assert not told
    world.polls.failed(poll, UnavailableError("network"), world.now)
    world.polls.ended(poll, world.now)
    world.polls.look(world.now, world.polls.in_flight)
    assert told == [("q", world.now)]
    world.polls.stop(world.now)
    world.polls.look(world.now, world.polls.in_flight)
    assert len(told) == 1


def test_polls_whose_thread_is_gone_have_failed(world):
    for failures in (1, 2):
        world.next()
        world.polls.look(world.now, ())
        assert (world.polls.failures, world.polls.in_flight) == (failures, [])
        assert world.due() > 0
    assert world.capacity.reserve("other").messages == 10


def test_a_poll_ends_once(world):
    poll = world.take()
    world.bring(poll)
    world.polls.ended(poll, world.now)
    assert world.due() == 60


# Pauses.


def test_a_paused_queue_is_not_polled_has_no_share_and_is_polled_at_once_after_it(world):
    world.bring(world.take(), after=LONG)
    world.polls.pause(world.now + 10, world.now)
    assert world.due() == 10
    assert world.take() is None
    assert world.polls.late(world.now + 500) == 0
    assert world.capacity._queues["q"] == 0
    world.clock.advance(10)
    assert world.due() == 0
    assert world.take().wait == LONG
    assert world.capacity._queues["q"] == 1


def test_a_pause_ends_the_help(world):
    world.capacity.prefetch_count = 1000
    world.bring(world.take(), *batch(10))
    poll = world.take()
    world.polls.pause(world.now + 10, world.now)
    assert world.due() == 10
    world.bring(poll, *batch(10))
    world.clock.advance(10)
    assert world.due() == 0
    assert world.polls.ready() == 1
    world.take()
    assert world.due() is None


def test_a_pause_that_ends_just_now_is_none(world):
    world.polls.pause(world.now, world.now)
    assert world.polls.state is Polling.ACTIVE


def test_a_stop_during_a_pause_gives_the_share_up_once(world):
    world.polls.pause(math.inf, world.now)
    assert world.due() is None
    world.polls.stop(world.now)
    assert world.capacity._queues["q"] == 0


def test_the_end_of_an_endless_pause_is_told(world):
    world.polls.pause(math.inf, world.now)
    assert world.due() is None
    world.polls.pause(-math.inf, world.now)
    assert world.due() == 0


def test_a_poll_in_flight_goes_on_in_a_pause_and_none_follows(world):
    poll = world.take()
    world.polls.pause(world.now + 100, world.now)
    world.bring(poll, *batch(10))
    assert (world.take(), world.capacity.held) == (None, 10)


# Helpers.


@pytest.mark.parametrize(
    ("messages", "seconds", "helped"),
    [
        (NEARLY_FULL_BATCH, 0.1, True),
        (NEARLY_FULL_BATCH - 1, 0.1, False),
        (9, ANSWERED_AT_ONCE_SECONDS, False),
        (10, 15, True),
    ],
    ids=["there is more", "that was all", "it was waited for", "waited for, and there is more"],
)
def test_where_an_answer_came_at_once_fewer_than_ten_have_a_helper(messages, seconds, helped):
    world = World(prefetch_count=1000)
    world.bring(world.take(), *batch(messages), after=seconds)
    assert world.polls.ready() == 1 + helped
    assert not world.take().helper
    helper = world.take()
    assert (helper is not None) is helped
    if helped:
        assert (helper.helper, helper.wait) == (True, 0)


def test_helpers_go_on_while_there_is_more_and_have_a_limit():
    world = World(prefetch_count=10_000)
    polls = [world.take()]
    for _ in range(2 * MAX_PARALLEL_POLLS):
        for poll in polls:
            world.bring(poll, *batch(10))
        polls = []
        while (poll := world.take()) is not None:
            polls.append(poll)
    assert len(polls) == MAX_PARALLEL_POLLS
    assert [poll.helper for poll in polls].count(False) == 1
    for poll in polls:
        world.bring(poll)
    world.clock.advance(60)
    assert not world.take().helper
    assert world.take() is None


def test_a_helper_waits_for_no_capacity():
    world = World(prefetch_count=15)
    world.bring(world.take(), *batch(10))
    assert world.take().reservation.messages == 5
    assert world.due() == 0
    assert world.take() is None
    assert world.due() is None, "it is not tried again"
    assert not world.capacity.waiters


def test_the_limit_counts_helpers_that_are_not_made_yet():
    world = World(prefetch_count=10_000)
    for _ in range(2 * MAX_PARALLEL_POLLS):
        world.bring(world.take(), *batch(10))
    assert world.polls.ready() == MAX_PARALLEL_POLLS


def helped(name="q"):
    """A world with a long poll and a helper."""
    world = World(name, prefetch_count=1000)
    world.bring(world.take(), *batch(1 if world.queue.fifo else 10))
    return world, world.take(), world.take()


def test_a_helper_never_waited_for_what_it_brings():
    world, _, helper = helped()
    world.bring(helper, *batch(NEARLY_FULL_BATCH), after=1)
    assert world.take().helper


@pytest.mark.parametrize(("name", "seconds"), [("q", 50), ("q.fifo", 60)])
def test_an_empty_helper_begins_the_sleep_of_a_standard_queue(name, seconds):
    world, long, helper = helped(name)
    world.bring(helper)
    world.bring(long, after=10)
    assert world.due() == seconds


def test_a_helper_of_a_fifo_queue_brings_a_message_that_was_expected():
    world, _, helper = helped("q.fifo")
    world.polls.expect("m", world.now + 5)
    world.bring(helper, "m")
    assert world.schedule.hidden(world.now) == 0


def test_a_cut_counts_beside_the_failure_of_a_helper():
    world, long, helper = helped()
    world.fail(helper)
    assert world.fail(long, AnswerLostError("closed"), after=LONG - 1) is Failure.CUT
    assert world.polls.failures == 2


def test_a_long_poll_that_finds_nothing_begins_the_sleep_though_a_helper_has_failed():
    world, long, helper = helped()
    world.fail(helper)
    world.bring(long)
    assert world.due() == 60


def test_a_helper_keeps_what_it_asks_for():
    world, long, helper = helped()
    asked = long.reservation.messages + helper.reservation.messages
    world.capacity.prefetch_count = world.capacity.held + asked
    assert world.capacity.reserve("other") is None


@pytest.mark.parametrize("helper", [False, True])
def test_others_get_what_was_reserved_for_a_poll_when_memory_lacked(helper, monkeypatch):
    world, others = World(prefetch_count=21 if helper else 1), []
    if helper:
        world.bring(world.take(), *batch(10))
        world.take()
    add_waiter = world.capacity.add_waiter

    def lack_memory(*added):
        if not helper:
            add_waiter(*added)
        monkeypatch.undo()
        others.append(world.capacity.wait("other"))
        assert others[0].reservation is None
        raise MemoryError

    monkeypatch.setattr(*((module, "Poll") if helper else (world.capacity, "add_waiter")), lack_memory)
    with pytest.raises(MemoryError):
        world.take()
    assert others[0].reservation.since == world.now
    assert not world.capacity.waiters


def test_where_a_helper_is_late_the_long_poll_still_waits():
    world, _, helper = helped()
    assert world.late(MAX_REPLY_GRACE_SECONDS) == [helper]
    assert world.take() is None


def test_the_end_of_a_helper_does_not_make_a_pause_longer():
    world, long, helper = helped()
    world.fail(long)
    world.clock.advance(world.due())
    world.polls.ended(helper, world.now)
    assert world.due() == 0


def test_of_few_groups_a_helper_is_tried_once_a_second():
    world = World("q.fifo", interval=0)
    long = world.take()

    def helpers_after_a_message():
        nonlocal long
        world.bring(long, "m")
        long = world.take()
        helper = world.take()
        if helper is not None:
            world.bring(helper)
        return int(helper is not None)

    assert [helpers_after_a_message() for _ in range(3)] == [1, 0, 0]
    world.clock.advance(HELPER_PAUSE_SECONDS)
    assert [helpers_after_a_message() for _ in range(2)] == [1, 0]


def test_an_empty_poll_of_a_helper_of_a_fifo_queue_begins_no_sleep():
    world = World("q.fifo")
    world.bring(world.take(), "m")
    long = world.take()
    world.bring(helper := world.take())
    assert helper.helper
    world.bring(long, "n")
    assert world.due() == 0


# Failures.


def test_after_a_failure_polls_pause_and_ask_for_an_answer_at_once(world):
    assert world.fail(world.take()) is Failure.OUTAGE
    assert 0 < world.due() <= MAX_PAUSE_SECONDS
    world.polls.expect("m", world.now)
    assert world.due() > 0, "also for a message that is back"
    probe = world.next()
    assert probe.wait == 0
    world.bring(probe)
    assert world.polls.failures == 0
    assert world.take().wait == LONG, "which begins no sleep: it may have missed messages"


@pytest.mark.parametrize("after", [REFUSED_WITHIN_SECONDS, LONG - 1])
def test_a_poll_that_is_cut_off_while_it_waits_is_no_outage(world, after):
    assert world.fail(world.take(), AnswerLostError("closed"), after=after) is Failure.CUT
    assert (world.polls.cuts, world.polls.failures) == (1, 1)


@pytest.mark.parametrize("after", [REFUSED_WITHIN_SECONDS - 1, LONG])
def test_one_that_could_not_wait_or_was_to_be_answered_is(world, after):
    assert world.fail(world.take(), AnswerLostError("closed"), after=after) is Failure.OUTAGE


@pytest.mark.parametrize(
    ("origin", "meanings"),
    [
        ("created", [Failure.EXPECTED] * NEW_QUEUE_FAILURES + [Failure.OUTAGE]),
        ("found", [Failure.OUTAGE] * (NEW_QUEUE_FAILURES + 1)),
    ],
)
def test_a_queue_made_just_now_may_be_unknown_to_a_part_of_sqs(origin, meanings):
    world = World(origin=origin)
    assert [world.fail(world.next(), QueueDoesNotExistError("no")) for _ in meanings] == meanings


def test_a_queue_that_was_there_once_is_missed():
    world = World(origin="created")
    world.bring(world.take())
    assert world.fail(world.next(), QueueDoesNotExistError("no")) is Failure.OUTAGE


def test_after_the_stop_its_last_consumer_may_have_deleted_the_queue(world):
    poll = world.take()
    world.polls.stop(world.now)
    assert world.fail(poll, QueueDoesNotExistError("no")) is Failure.EXPECTED
    assert world.polls.failures == 0


def test_failures_and_cuts_are_counted(world):
    for number in (1, 2, 3):
        world.fail(world.next())
        assert (world.polls.failures, world.polls.cuts) == (number, 0)
    for number in (1, 2):
        world.bring(world.next())
        assert world.fail(world.next(), AnswerLostError("closed"), after=LONG - 1) is Failure.CUT
        assert world.polls.cuts == number


# Late answers.


def test_a_pause_lasts_where_no_answer_is_late(world):
    world.fail(world.take())
    assert world.late(0) == []
    assert world.due() > 0


def test_each_late_answer_is_a_failure(world):
    for number in (1, 2):
        world.take()
        world.late()
        assert world.polls.failures == number


def test_a_stuck_poll_that_ends_does_not_make_a_pause_longer(world):
    stuck = world.take()
    world.polls.succeeded(stuck, ["a"], world.now)
    assert world.late(0) == []
    world.late(HUNG_AFTER_SECONDS)
    world.fail(world.take())
    world.clock.advance(world.due())
    world.polls.ended(stuck, world.now)
    assert world.due() == 0


def test_a_long_poll_is_late_once_its_wait_has_passed(world):
    poll = world.take()
    assert world.polls.late(poll.started + LONG) == 0
    assert world.polls.late(poll.started + LONG + 3) == 3


def test_an_answer_is_late_some_time_after_the_wait_and_counts_once(world):
    poll = world.take()
    assert world.late(LONG) == []
    assert world.late(MAX_REPLY_GRACE_SECONDS) == [poll]
    assert world.late() == []
    assert (poll.state, world.polls.failures) == (PollState.UNANSWERED, 1)
    assert world.fail(poll) is Failure.EXPECTED
    assert world.polls.failures == 1


def test_another_takes_the_place_of_a_late_poll_whose_messages_still_count():
    world = World(prefetch_count=1)  # all the capacity hangs with it
    late = world.take()
    world.late()
    assert world.due() == 0
    probe = world.take()
    assert (probe.wait, probe.reservation.messages) == (0, 1)
    world.bring(probe, "a")
    world.bring(late, "b")
    assert world.capacity.held == 2


def test_while_answers_are_late_the_polling_is_not_and_then_it_is(world):
    for _ in range(MAX_POLLS):
        assert world.take() is not None
        world.late()
        assert world.polls.late(world.now) == 0
    assert world.polls.late(world.now + 60) == 60
    assert world.polls.late(world.now) == 0


def test_taking_messages_for_too_long_is_no_failure_of_sqs(world):
    poll = world.take()
    world.polls.succeeded(poll, ["a"], world.now)
    assert world.late(HUNG_AFTER_SECONDS) == [poll]
    assert (poll.state, world.polls.failures) == (PollState.STUCK, 0)
    assert world.take() is not None


def test_a_sleeping_queue_that_does_not_wake_is_late(world):
    world.bring(world.take(), after=LONG)
    assert world.polls.late(world.now + 59) == 0
    assert world.polls.late(world.now + 100) == 40


def test_a_first_poll_counts_as_accepted_while_sqs_lets_it_wait(world):
    assert not world.polls.accepted(world.now)
    world.take()
    assert not world.polls.accepted(world.now)
    assert world.polls.accepted(world.now + REFUSED_WITHIN_SECONDS)
    world.late()
    assert not world.polls.accepted(world.now)
    world.bring(world.take())
    assert world.polls.accepted(world.now)


# Attempts of FIFO queues.


@pytest.mark.parametrize(
    ("name", "errors", "seconds", "same_as"),
    [
        ("q.fifo", [UnavailableError("network"), UnrecognizedResponseError("gateway")], 0, [0, 0, 0, 3]),
        ("q.fifo", [ThrottledError("slow")], 0, [0, 1, 2, 3]),
        ("q.fifo", [AccessDeniedError("no")], 0, [0, 1, 2, 3]),
        ("q.fifo", [UnavailableError("network")], 120, [0, 1, 2, 3]),
        ("q", [UnavailableError("network")], 0, [None] * 4),
    ],
    ids=[
        "until there is an answer",
        "a refusal is an answer",
        "this one too",
        "others may have the messages by now",
        "not in a standard queue",
    ],
)
def test_a_fifo_receive_without_an_answer_is_tried_again_under_its_id(name, errors, seconds, same_as):
    world = World(name, interval=0)
    ids = []
    for _ in range(4):
        poll = world.next()
        ids.append(poll.attempt and poll.attempt.id)
        if errors:
            world.fail(poll, errors.pop(0))
        else:
            world.bring(poll)
        world.clock.advance(seconds)
    assert [None if one is None else ids.index(one) for one in ids] == same_as


def test_each_receive_has_an_id_of_its_own():
    attempts = Attempts(120)
    assert len({attempts.begin(NOW).id for _ in range(3)}) == 3


def test_those_without_an_answer_are_tried_again_each_once_the_oldest_first():
    attempts = Attempts(120)
    first, second = attempts.begin(NOW), attempts.begin(NOW)
    attempts.unanswered(first)
    attempts.unanswered(second)
    again = [attempts.begin(NOW + 1) for _ in range(3)]
    assert again[:2] == [first, second]
    assert again[2] not in {first, second}


@pytest.mark.parametrize(("visibility_timeout", "lasts"), [(30, 30), (1200, ATTEMPT_SECONDS)])
def test_an_id_counts_from_its_first_request(visibility_timeout, lasts):
    attempts = Attempts(visibility_timeout)
    attempt = attempts.begin(NOW)
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts - 1) == attempt
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts) != attempt
