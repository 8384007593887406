"""One poll: it asks for what is reserved, its messages are taken, and its capacity comes back in any case."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import RECEIVE_OPTIONS, capacity, send, sqs_queue

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.receive.polls import Polls, PollState
from celery_sqs_visibility.delivery.supervisor import HUNG_AFTER_SECONDS
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.polling import PollSchedule


def polling(name="q", prefetch_count=10):
    """The polls of a queue, made on the test's thread, and everything around them."""
    clock = FakeClock()
    queue = sqs_queue(name, FakeSQS(clock))
    world = SimpleNamespace(clock=clock, queue=queue, sqs=queue.sqs, arrived=[], discarded=0)
    world.capacity = capacity(prefetch_count, clock=clock)
    world.on_arrival = lambda: None
    world.schedule = PollSchedule(60, 60)

    def take(queue, messages, called, returned):
        world.arrived.append((queue, [message["Body"] for message in messages], called, returned))
        world.on_arrival()

    world.polls = Polls(queue, world.capacity, world.schedule, 20, RECEIVE_OPTIONS, clock, take)
    world.reserve = lambda: world.capacity.reserve(name, 0, fifo=queue.fifo)
    world.poll = lambda wait=0, **role: world.polls.poll(world.reserve(), wait=wait, **role)
    world.receives = lambda: [
        arguments for action, arguments in world.sqs.calls if action == "ReceiveMessage"
    ]
    return world


@pytest.fixture
def world():
    return polling()


def during_the_call(world, action):
    """Do something while the next request is under way, SQS having answered it."""
    receive = world.sqs.receive

    def receive_and_act(*arguments):
        world.sqs.receive = receive
        messages = receive(*arguments)
        action()
        return messages

    world.sqs.receive = receive_and_act


def test_a_poll_asks_for_what_is_reserved_with_the_options_of_the_queue(world):
    world.capacity.prefetch_count = 3
    world.poll(wait=7)
    (call,) = world.receives()
    assert (call["max_messages"], call["wait"], call["options"]) == (3, 7, RECEIVE_OPTIONS)


def test_a_poll_passes_its_messages_on_with_the_instants_around_the_call(world):
    send(world.queue, "a", "b")
    during_the_call(world, lambda: world.clock.advance(3))
    assert world.poll() == 2
    now = world.clock.monotonic()
    assert world.arrived == [(world.queue, ["a", "b"], now - 3, now)]
    assert world.capacity.held == 2


def test_an_empty_poll_passes_nothing_on_and_gives_its_capacity_back(world):
    assert world.poll() == 0
    assert not world.arrived
    assert world.capacity.held == 0
    assert world.reserve().messages == 10


@pytest.mark.parametrize("error", [UnavailableError("network"), AccessDeniedError("no")])
def test_a_failed_poll_counts_and_gives_its_capacity_back(world, error):
    world.sqs.fail_next("ReceiveMessage", error)
    assert world.poll() == 0
    assert (world.capacity.held, world.reserve().messages) == (0, 10)
    assert world.polls.failures == 1


def test_a_bug_gives_its_capacity_back_too(world):
    world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    with pytest.raises(RuntimeError):
        world.poll()
    assert world.reserve().messages == 10
    assert world.polls.wait_until_over(0)


def test_an_outage_is_logged_once_for_each_kind_and_so_is_its_end(world, caplog):
    for error in (ThrottledError("slow"), ThrottledError("slow"), UnavailableError("network")):
        world.sqs.fail_next("ReceiveMessage", error)
        world.poll()
    world.poll()
    world.poll()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot receive from SQS: slow; trying again (queue=q)",
        "cannot receive from SQS: network; trying again (queue=q)",
        "can receive from SQS again after 0 s (queue=q failures=3)",
    ]


def test_a_poll_whose_messages_could_not_be_taken_is_over_too(world):
    def broken():
        raise RuntimeError("a bug")

    world.on_arrival = broken
    send(world.queue, "a")
    with pytest.raises(RuntimeError):
        world.poll()
    assert world.polls.wait_until_over(0)


def test_one_waits_for_polls_in_flight_until_their_messages_are_taken_and_no_longer(world):
    assert world.polls.wait_until_over(world.clock.monotonic() + 100)
    during = []
    world.on_arrival = lambda: during.append(world.polls.wait_until_over(0))
    send(world.queue, "a")
    world.poll()
    assert during == [False]
    assert world.polls.wait_until_over(0)


def stop(world):
    world.polls.stopping = True


def test_messages_of_a_poll_that_was_in_flight_at_the_stop_still_arrive(world):
    send(world.queue, "a")
    during_the_call(world, lambda: stop(world))
    assert world.poll() == 1
    assert world.arrived


def test_after_the_stop_no_poll_begins(world):
    send(world.queue, "a")
    stop(world)
    assert world.poll() == 0
    assert world.reserve().messages == 10
    assert not world.receives()


@pytest.mark.parametrize(("stopping", "failures"), [(True, 0), (False, 1)])
def test_that_its_last_consumer_deleted_the_queue_is_no_failure(world, stopping, failures):
    def delete():
        world.polls.stopping = stopping
        raise QueueDoesNotExistError("gone")

    during_the_call(world, delete)
    world.poll()
    assert world.polls.failures == failures


def test_a_poll_that_finds_nothing_begins_the_sleep(world):
    world.poll(wait=20)
    assert world.schedule.next_poll() == world.clock.monotonic() + 60


def test_the_short_poll_after_a_failure_is_followed_by_a_long_one(world):
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.poll(wait=20)
    world.poll(wait=0)  # it may miss messages
    assert world.schedule.next_poll() <= world.clock.monotonic()


def test_a_helper_that_finds_nothing_in_a_fifo_queue_says_nothing_about_the_queue():
    world = polling("q.fifo")
    world.poll(helper=True)
    assert world.schedule.next_poll() <= world.clock.monotonic()


def hang(world, seconds):
    """During a request, or while its messages are taken: let time pass, and have the supervisor look."""
    (poll,) = world.polls.in_flight
    world.discarded = 0
    world.sqs.discard_idle_connections = lambda: setattr(world, "discarded", world.discarded + 1)
    world.clock.advance(seconds)
    unanswered = world.polls.give_up_overdue(world.clock.monotonic())
    assert world.polls.give_up_overdue(world.clock.monotonic()) == 0, "once"
    return poll.state, unanswered


def test_a_late_answer_gives_the_capacity_back_and_its_messages_still_count(world, caplog):
    states = []

    def be_late():
        states.append(hang(world, 20 + 5))
        states.append(world.capacity.reserve("q", 0).messages)

    send(world.queue, "a", "b")
    during_the_call(world, be_late)
    world.on_arrival = lambda: states.append(world.polls.in_flight[0].state)
    assert world.poll(wait=20) == 2
    assert states == [(PollState.UNANSWERED, 1), 10, PollState.ANSWERED]
    assert world.capacity.held == 2
    assert world.discarded == 1
    assert caplog.messages[0] == (
        "cannot receive from SQS: ReceiveMessage gets no answer; trying again (queue=q)"
    )


def test_a_late_error_has_counted_already(world):
    def be_late():
        hang(world, 30)
        raise UnavailableError("timed out")

    during_the_call(world, be_late)
    world.poll()
    assert world.polls.failures == 1


def test_an_answer_in_time_is_waited_for(world):
    states = []
    during_the_call(world, lambda: states.append(hang(world, 20)))
    world.poll(wait=20)
    assert states == [(PollState.ASKED, 0)]
    assert world.polls.failures == world.discarded == 0


def test_taking_messages_for_too_long_is_no_failure_of_sqs(world):
    states = []
    send(world.queue, "a")
    world.on_arrival = lambda: states.append(hang(world, HUNG_AFTER_SECONDS + 1))
    world.poll()
    assert states == [(PollState.STUCK, 0)]
    assert world.capacity.held == 1
    assert world.polls.failures == world.discarded == 0


def attempts(world):
    return [call["options"].attempt_id for call in world.receives()]


def test_a_fifo_receive_without_an_answer_is_tried_again_under_its_id_until_there_is_one():
    world = polling("q.fifo")
    for error in (UnavailableError("network"), UnrecognizedResponseError("gateway")):
        world.sqs.fail_next("ReceiveMessage", error)
    for _ in range(4):
        world.poll()
    first, second, third, fourth = attempts(world)
    assert first == second == third != fourth
    assert None not in attempts(world)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (ThrottledError("slow"), 0),
        (AccessDeniedError("no"), 0),
        (UnavailableError("network"), RECEIVE_OPTIONS.visibility_timeout),
    ],
    ids=["a refusal is an answer", "this one too", "others may have the messages by now"],
)
def test_an_id_is_not_used_again(error, seconds):
    world = polling("q.fifo")
    world.sqs.fail_next("ReceiveMessage", error)
    world.poll()
    world.clock.advance(seconds)
    world.poll()
    assert len(set(attempts(world))) == 2


def test_messages_of_a_lost_answer_are_brought_again():
    def lose_the_answer():
        raise UnavailableError("connection reset")

    world = polling("q.fifo")
    send(world.queue, "a")
    during_the_call(world, lose_the_answer)
    assert world.poll() == 0
    assert world.poll() == 1


def test_a_standard_queue_has_no_attempts(world):
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.poll()
    world.poll()
    assert attempts(world) == [None, None]


def test_of_a_fifo_queue_no_more_is_held_than_can_start():
    world = polling("q.fifo", prefetch_count=2)
    for group in "abcdef":
        send(world.queue, group, group=group)
    for held in (1, 2):
        world.poll()
        assert world.capacity.held == held
    assert world.reserve() is None
    world.capacity.release(began=0.0, fifo=True)
    assert world.reserve().messages == 1
