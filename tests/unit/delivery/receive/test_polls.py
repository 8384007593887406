"""One poll: it asks for what is reserved, its messages are taken, and its capacity comes back in any case."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import RECEIVE_OPTIONS, capacity, send, sqs_queue

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.pump import HUNG_AFTER_SECONDS
from celery_sqs_visibility.delivery.receive.receiver import PollState, Receiver
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.events import subscribe
from celery_sqs_visibility.measurements import ReceiveEnded
from celery_sqs_visibility.policy.polling import ATTEMPT_SECONDS, Attempts, PollSchedule

NOW = 1000.0


def polling(name="q", prefetch_count=10):
    """The polls of a queue, made on the test's thread, and everything around them."""
    clock = FakeClock()
    queue = sqs_queue(name, FakeSQS(clock))
    world = SimpleNamespace(clock=clock, queue=queue, sqs=queue.sqs, arrived=[], discarded=0)
    world.capacity = capacity(prefetch_count, clock=clock)
    world.on_arrival = lambda: None
    world.schedule = PollSchedule(60, 60)

    def take(queue, messages, called, returned):
        world.capacity.hold(len(messages), queue=queue.name, fifo=queue.fifo)
        world.arrived.append((queue, [message["Body"] for message in messages], called, returned))
        world.on_arrival()

    world.lock = threading.Lock()
    world.receiver = Receiver(
        queue, world.capacity, world.schedule, 20, RECEIVE_OPTIONS, clock, take, world.lock
    )
    world.reserve = lambda: world.capacity.reserve(name, fifo=queue.fifo)
    world.poll = lambda wait=0, **role: world.receiver.poll(world.reserve(), wait=wait, **role)
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


def test_a_poll_asks_for_what_is_reserved_and_passes_it_on_with_the_instants_around_the_call(world):
    world.capacity.prefetch_count = 3
    send(world.queue, "a", "b")
    during_the_call(world, lambda: world.clock.advance(3))
    assert world.poll(wait=7) == 2
    (call,) = world.receives()
    assert (call["max_messages"], call["wait"], call["options"]) == (3, 7, RECEIVE_OPTIONS)
    now = world.clock.monotonic()
    assert world.arrived == [(world.queue, ["a", "b"], now - 3, now)]
    assert world.capacity.held == 2


@pytest.mark.parametrize("error", [None, UnavailableError("network"), AccessDeniedError("no")])
def test_an_empty_or_failed_poll_passes_nothing_on_and_gives_its_capacity_back(world, error):
    if error:
        world.sqs.fail_next("ReceiveMessage", error)
    assert world.poll() == 0
    assert not world.arrived
    assert (world.capacity.held, world.reserve().messages) == (0, 10)
    assert world.receiver.failures == bool(error)


@pytest.mark.parametrize(("where", "room"), [("in the request", 10), ("as messages are taken", 9)])
def test_a_bug_ends_the_poll_too_and_takes_no_capacity(world, where, room):
    def broken():
        raise RuntimeError("a bug")

    if where == "in the request":
        world.sqs.fail_next("ReceiveMessage", RuntimeError("a bug"))
    world.on_arrival = broken
    send(world.queue, "a")
    with pytest.raises(RuntimeError):
        world.poll()
    assert world.reserve().messages == room
    assert world.receiver.wait_for_polls(0)


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


def test_a_queue_that_was_deleted_is_told_with_what_makes_it_anew(world, caplog):
    world.sqs.fail_next("ReceiveMessage", QueueDoesNotExistError("it does not exist."))
    world.poll()
    (record,) = caplog.records
    assert record.getMessage() == (
        "cannot receive from SQS: it does not exist; it was deleted, or its server has forgotten it: "
        "`celery -A ... sqs queues create` makes it anew with its dead-letter queue, and the worker receives "
        "from it without a restart; trying again (queue=q)"
    )


@pytest.mark.parametrize(
    ("origin", "failures", "lines"), [("created", 2, 0), ("created", 3, 2), ("found", 1, 2)]
)
def test_a_queue_made_just_now_may_be_unknown_to_a_part_of_sqs(world, caplog, origin, failures, lines):
    receiver = Receiver(
        replace(world.queue, origin=origin),
        world.capacity,
        world.schedule,
        20,
        RECEIVE_OPTIONS,
        world.clock,
        print,
        world.lock,
    )
    for _ in range(failures):
        world.sqs.fail_next("ReceiveMessage", QueueDoesNotExistError("not yet"))
    for _ in range(failures + 1):
        receiver.poll(world.reserve(), wait=0)
    assert len(caplog.records) == lines


def test_a_poll_that_brings_none_of_the_hidden_messages_is_told_too(world):
    world.poll()
    assert not world.arrived
    world.receiver.expect("m", world.clock.monotonic() + 3600)
    assert world.receiver.facts(world.clock.monotonic()).hidden == 1
    world.poll()
    assert [bodies for _, bodies, *_ in world.arrived] == [[]]


def test_one_waits_for_polls_in_flight_until_their_messages_are_taken_and_no_longer(world):
    assert world.receiver.wait_for_polls(world.clock.monotonic() + 100)
    during = []
    world.on_arrival = lambda: during.append(world.receiver.wait_for_polls(0))
    send(world.queue, "a")
    world.poll()
    assert during == [False]
    assert world.receiver.wait_for_polls(0)


def test_a_poll_in_flight_at_the_stop_still_brings_its_messages_and_none_begins_after_it(world):
    send(world.queue, "a")
    during_the_call(world, lambda: setattr(world.receiver, "stopping", True))
    assert world.poll() == 1
    assert world.arrived
    send(world.queue, "b")
    assert world.poll() == 0
    assert world.reserve().messages == 9
    assert len(world.receives()) == 1


@pytest.mark.parametrize(
    ("meanwhile", "error", "failures"),
    [
        (lambda world: setattr(world.receiver, "stopping", True), QueueDoesNotExistError("gone"), 0),
        (lambda world: None, QueueDoesNotExistError("gone"), 1),
        (lambda world: hang(world, 30), UnavailableError("timed out"), 1),
    ],
    ids=["its last consumer deleted the queue", "somebody else did", "late, it has counted already"],
)
def test_an_error_counts_once_unless_the_queue_was_deleted_after_the_stop(world, meanwhile, error, failures):
    def fail():
        meanwhile(world)
        raise error

    during_the_call(world, fail)
    world.poll()
    assert world.receiver.failures == failures


@pytest.mark.parametrize(
    ("name", "wait", "helper", "fails_first", "sleep"),
    [
        ("q", 20, False, False, 60),
        ("q", 0, False, True, 0),  # it may miss messages: a long one follows
        ("q.fifo", 0, True, False, 0),  # its groups may be busy
    ],
    ids=["yes", "not a short one after a failure", "not a helper's of a FIFO queue"],
)
def test_a_poll_that_finds_nothing_begins_the_sleep(name, wait, helper, fails_first, sleep):
    world = polling(name)
    if fails_first:
        world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
        world.poll(wait=20)
    world.poll(wait=wait, helper=helper)
    now = world.clock.monotonic()
    assert max(now, world.schedule.next_poll()) == now + sleep


def hang(world, seconds):
    """During a request, or while its messages are taken: let time pass, and have the supervisor look."""
    (poll,) = world.receiver.in_flight
    world.sqs.discard_idle_connections = lambda: setattr(world, "discarded", world.discarded + 1)
    world.clock.advance(seconds)
    unanswered = world.receiver.give_up_overdue(world.clock.monotonic())
    assert world.receiver.give_up_overdue(world.clock.monotonic()) == 0, "once"
    return poll.state, unanswered


def test_a_late_answer_gives_the_capacity_back_and_its_messages_still_count(world, caplog):
    states = []

    def be_late():
        states.append(hang(world, 20 + 5))
        states.append(world.capacity.reserve("q").messages)

    send(world.queue, "a", "b")
    during_the_call(world, be_late)
    world.on_arrival = lambda: states.append(world.receiver.in_flight[0].state)
    assert world.poll(wait=20) == 2
    assert states == [(PollState.UNANSWERED, 1), 10, PollState.ANSWERED]
    assert world.capacity.held == 2
    assert world.discarded == 1
    assert caplog.messages[0] == (
        "cannot receive from SQS: ReceiveMessage gets no answer; trying again (queue=q)"
    )


def test_an_answer_in_time_is_waited_for_and_taking_messages_for_too_long_is_no_failure_of_sqs(world):
    states = []
    send(world.queue, "a")
    during_the_call(world, lambda: states.append(hang(world, 20)))
    world.on_arrival = lambda: states.append(hang(world, HUNG_AFTER_SECONDS + 1))
    world.poll(wait=20)
    assert states == [(PollState.ASKED, 0), (PollState.STUCK, 0)]
    assert world.capacity.held == 1
    assert world.receiver.failures == world.discarded == 0


@pytest.mark.parametrize(
    ("name", "errors", "seconds", "same_as"),
    [
        ("q.fifo", [UnavailableError("network"), UnrecognizedResponseError("gateway")], 0, [0, 0, 0, 3]),
        ("q.fifo", [ThrottledError("slow")], 0, [0, 1, 2, 3]),
        ("q.fifo", [AccessDeniedError("no")], 0, [0, 1, 2, 3]),
        ("q.fifo", [UnavailableError("network")], RECEIVE_OPTIONS.visibility_timeout, [0, 1, 2, 3]),
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
    world = polling(name)
    for error in errors:
        world.sqs.fail_next("ReceiveMessage", error)
    for _ in range(4):
        world.poll()
        world.clock.advance(seconds)
    ids = [call["options"].attempt_id for call in world.receives()]
    assert [None if one is None else ids.index(one) for one in ids] == same_as


def test_messages_of_a_lost_answer_are_brought_again():
    def lose_the_answer():
        raise UnavailableError("connection reset")

    world = polling("q.fifo")
    send(world.queue, "a")
    during_the_call(world, lose_the_answer)
    assert world.poll() == 0
    assert world.poll() == 1


def test_of_a_fifo_queue_no_more_is_held_than_can_start():
    world = polling("q.fifo", prefetch_count=2)
    for group in "abcdef":
        send(world.queue, group, group=group)
    for held in (1, 2):
        world.poll()
        assert world.capacity.held == held
    assert world.reserve() is None
    world.capacity.release(began=0.0)
    assert world.reserve().messages == 1


def test_how_full_a_receive_was_is_told_to_who_listens_and_nothing_of_one_that_failed(world):
    send(world.queue, "a", "b")
    heard = []
    end = subscribe(heard.append, ReceiveEnded)
    world.poll()
    world.sqs.fail_next("ReceiveMessage", UnavailableError("network"))
    world.poll()
    end()
    assert heard == [ReceiveEnded("q", 10, 2)]


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
