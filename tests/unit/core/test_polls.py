"""Polls of a queue as decisions: when the next is due, how long it waits, what its end means."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import FilledCapacity

from celery_sqs_visibility.core.polls import (
    ANSWERED_AT_ONCE_SECONDS,
    HELPER_PAUSE_SECONDS,
    MAX_PARALLEL_POLLS,
    MAX_POLLS,
    NEARLY_FULL_BATCH,
    NEW_QUEUE_FAILURES,
    REFUSED_WITHIN_SECONDS,
    STUCK_AFTER_SECONDS,
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
from celery_sqs_visibility.policy.backoff import LONGEST_PAUSE_SECONDS, LONGEST_REPLY_GRACE_SECONDS
from celery_sqs_visibility.policy.polling import ATTEMPT_SECONDS, Attempts, PollSchedule

NOW = 1000.0
LONG = 20
LATE = LONG + LONGEST_REPLY_GRACE_SECONDS


class World:
    """The polls of a queue, made by the test."""

    def __init__(self, name="q", prefetch_count=10, interval=60, origin="found", visibility_timeout=120):
        self.clock = FakeClock()
        self.capacity = FilledCapacity(0.0, self.clock)
        self.capacity.prefetch_count = prefetch_count
        self.queue = SimpleNamespace(name=name, fifo=name.endswith(".fifo"), origin=origin)
        self.schedule = PollSchedule(interval, interval)
        self.served = 0
        self.polls = QueuePolls(
            self.queue,
            self.capacity,
            self.schedule,
            LONG,
            visibility_timeout,
            self.serve,
        )
        self.polls.start(self.now)

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


def test_before_the_start_and_after_the_stop_nothing_is_due(world):
    world.polls.stop(world.now)
    world.polls.start(world.now)
    assert (world.due(), world.take(), world.polls.state) == (None, None, Polling.STOPPED)


def test_one_that_never_started_leaves_the_others_their_share():
    world = World()
    other = QueuePolls(world.queue, world.capacity, world.schedule, LONG, None, world.serve)
    assert other.due(world.now) is None
    other.stop(world.now)
    assert world.take().reservation.messages == 10


def test_polls_in_flight_at_the_stop_still_bring_their_messages(world):
    poll = world.take()
    world.polls.stop(world.now)
    assert not world.polls.is_over
    world.bring(poll, "a")
    assert world.polls.is_over
    assert world.capacity.held == 1


def test_a_poll_that_hangs_does_not_keep_a_stopped_queue_from_being_over(world):
    world.take()
    world.polls.stop(world.now)
    world.late()
    assert world.polls.is_over


def test_a_second_stop_takes_nothing_from_who_polls_the_queue_now(world):
    world.polls.stop(world.now)
    other = QueuePolls(world.queue, world.capacity, world.schedule, LONG, None, world.serve)
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


def test_a_message_that_is_back_waits_for_no_idle_queues_turn():
    world = World(prefetch_count=2, interval=0)
    for name in "abcdefghijklmnopqrst":
        world.capacity.add_queue(f"another: {name}")
        world.capacity.wait(f"another: {name}")
    assert world.take() is None
    world.polls.expect("m", world.now)
    world.polls.look(world.now)
    assert world.take() is not None


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
    assert world.take() is None
    assert world.due() is None, "it is not tried again"


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
    assert 0 < world.due() <= LONGEST_PAUSE_SECONDS
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


# Late answers.


def test_an_answer_is_late_some_time_after_the_wait_and_counts_once(world):
    poll = world.take()
    assert world.late(LONG) == []
    assert world.late(LONGEST_REPLY_GRACE_SECONDS) == [poll]
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
    assert world.late(STUCK_AFTER_SECONDS) == [poll]
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


@pytest.mark.parametrize(
    ("visibility_timeout", "lasts"), [(30, 30), (1200, ATTEMPT_SECONDS), (None, ATTEMPT_SECONDS)]
)
def test_an_id_counts_from_its_first_request(visibility_timeout, lasts):
    attempts = Attempts(visibility_timeout)
    attempt = attempts.begin(NOW)
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts - 1) == attempt
    attempts.unanswered(attempt)
    assert attempts.begin(NOW + lasts) != attempt
