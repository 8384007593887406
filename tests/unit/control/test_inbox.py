"""One queue and its thread: made, polled, renewed, made anew, given up."""

from __future__ import annotations

import threading

import pytest
from support.clock import FakeClock
from support.factories import requests
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import inbox as inboxes
from celery_sqs_visibility.control.inbox import FIRST_SWEEP_SECONDS, NEW_SECONDS, SWEEP_SECONDS, Inbox
from celery_sqs_visibility.control.queues import SIGN_OF_LIFE_SECONDS, ControlQueues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

EXCHANGE = "celery.pidbox"


class World:
    """An inbox on an SQS of its own."""

    def __init__(self, clock=SYSTEM_CLOCK, **options):
        self.sqs = FakeSQS(clock)
        self.queues = ControlQueues(self.sqs, "p-", {}, clock)
        self.messages = []
        self.inbox = Inbox(self.queues, EXCHANGE, "a@host", self.messages.append, clock, **options)

    def turn(self):
        """What the thread does once."""
        self.inbox._poll(self.inbox._queue or self.inbox._create())

    def urls(self):
        return self.sqs.list_queues("p-")


@pytest.fixture
def world():
    world = World()
    yield world
    world.inbox.stop()
    wait_until(lambda: not inboxes_threads(), SOON, "its threads to end")


def inboxes_threads():
    return [each for each in threading.enumerate() if each.name.startswith("sqs-control")]


def test_messages_are_received_once_and_the_queue_ends_with_it(world):
    world.inbox.start()
    (url,) = (world.queues.url_of(EXCHANGE, world.inbox.address()),)
    world.sqs.send(url, OutgoingMessage("hello"))
    wait_until(lambda: world.messages, SOON, "the message")
    assert world.messages[0]["Body"] == "hello"
    assert requests(world.sqs, "DeleteMessageBatch") == []
    world.inbox.stop()
    world.inbox.stop()
    world.inbox.join(SOON)
    assert world.urls() == []
    assert not world.inbox.use()


def test_who_is_slow_has_the_rest_stay_at_sqs(monkeypatch):
    monkeypatch.setattr(inboxes, "FULL_PAUSE_SECONDS", 0)
    world = World(FakeClock(), is_full=lambda: len(world.messages) >= 10)
    queue = world.inbox._create()
    for _ in range(12):
        world.sqs.send(queue.url, OutgoingMessage("event"))
    world.turn()
    world.inbox._helpers.acquire()
    world.inbox._help(queue)
    world.turn()
    assert len(world.messages) == 10
    world.messages.clear()
    world.turn()
    assert len(world.messages) == 2


def test_the_address_is_waited_for_and_an_error_told(world, monkeypatch, caplog):
    monkeypatch.setattr(inboxes, "REFUSED_PAUSE_SECONDS", 0.01)
    world.sqs.fail_next("CreateQueue", AccessDeniedError("allow sqs:CreateQueue"))
    world.inbox._failed(AccessDeniedError("allow sqs:CreateQueue"))
    with pytest.raises(AccessDeniedError, match="sqs:CreateQueue"):
        world.inbox.address()
    world.inbox.start()
    wait_until(world.urls, SOON, "another attempt")
    assert "cannot use its control queue" in caplog.text


def test_an_address_is_given_once_sqs_has_answered_a_poll(world, monkeypatch):
    monkeypatch.setattr(inboxes, "NEW_PAUSE_SECONDS", 0.05)
    for _ in range(3):
        world.sqs.fail_next("ReceiveMessage", QueueDoesNotExistError("not yet"))
    world.inbox.start()
    world.inbox.address()
    assert len(requests(world.sqs, "ReceiveMessage")) > 3


def test_the_first_poll_after_an_error_is_short_so_that_its_end_is_known_soon():
    world = World(FakeClock())
    world.turn()
    world.turn()
    world.inbox._stopped.wait = lambda _seconds: None
    world.inbox._failed(ThrottledError("slow down"))
    world.turn()
    assert [each["wait"] for each in requests(world.sqs, "ReceiveMessage")] == [0, 20, 1]


def test_a_queue_that_was_swept_is_made_anew(monkeypatch, world):
    monkeypatch.setattr(inboxes, "NEW_SECONDS", 0)
    world.inbox.start()
    first = world.inbox.address()
    world.sqs.delete_queue(world.queues.url_of(EXCHANGE, first))
    wait_until(lambda: world.urls() and world.inbox.address() != first, SOON, "another queue")


def test_a_new_queue_may_not_be_there_yet():
    clock = FakeClock()
    world = World(clock)
    world.turn()
    queue = world.inbox._queue
    world.inbox._stopped = threading.Event()
    world.inbox._stopped.wait = lambda _: None
    gone = QueueDoesNotExistError("not yet")
    world.inbox._failed(gone)
    assert world.inbox._queue is queue
    clock.advance(NEW_SECONDS)
    world.inbox._failed(gone)
    assert world.inbox._queue is None


def test_it_gives_signs_of_life_and_sweeps_now_and_then():
    clock = FakeClock()
    world = World(clock, sweeps=[EXCHANGE])
    for _ in range(3):
        world.turn()
        clock.advance(SIGN_OF_LIFE_SECONDS / 2)
    assert len(requests(world.sqs, "TagQueue")) == 1
    clock.advance(FIRST_SWEEP_SECONDS)
    world.turn()
    wait_until(lambda: len(requests(world.sqs, "ListQueues")) == 1, SOON, "a sweep")
    clock.advance(1.5 * SWEEP_SECONDS)
    world.turn()
    wait_until(lambda: len(requests(world.sqs, "ListQueues")) == 2, SOON, "another sweep")


def test_it_polls_on_while_its_sign_of_life_is_refused(caplog):
    clock = FakeClock()
    world = World(clock)
    world.turn()
    clock.advance(SIGN_OF_LIFE_SECONDS)
    world.sqs.fail_next("TagQueue", AccessDeniedError("allow sqs:TagQueue"))
    world.turn()
    assert len(requests(world.sqs, "ReceiveMessage")) == 2
    assert "cannot tag the control queue of a@host with a sign of life" in caplog.text


@pytest.mark.parametrize(("wanted", "left"), [(True, 1), (False, 0)])
def test_a_queue_that_nobody_wants_is_given_up(wanted, left):
    clock = FakeClock()
    world = World(clock, wanted=lambda: wanted, idle_seconds=60.0)
    world.turn()
    clock.advance(60)
    world.turn()
    world.inbox.join(SOON)
    assert len(world.urls()) == left


def test_many_messages_are_received_by_several_threads_and_each_once(world):
    world.inbox.start()
    url = world.queues.url_of(EXCHANGE, world.inbox.address())
    for number in range(300):
        world.sqs.send(url, OutgoingMessage(str(number)))
    wait_until(lambda: len(world.messages) >= 300, SOON, "all messages")
    assert sorted(int(each["Body"]) for each in world.messages) == list(range(300))


def test_a_helper_ends_with_its_error(world):
    queue = world.inbox._create()
    for _ in range(2 * inboxes.MAX_HELPERS):
        world.sqs.fail_next("ReceiveMessage", AccessDeniedError("no"))
        world.inbox._helpers.acquire()
        world.inbox._help(queue)


def test_a_fleet_does_nothing_at_the_same_time():
    worlds = [World(FakeClock(), sweeps=[EXCHANGE]) for _ in range(20)]
    sweeps = sorted(each.inbox._sweep_at - each.inbox._clock.monotonic() for each in worlds)
    assert 0 <= sweeps[0] < sweeps[-1] <= FIRST_SWEEP_SECONDS
    assert sweeps[-1] - sweeps[0] > FIRST_SWEEP_SECONDS / 10


@pytest.mark.parametrize(
    ("error", "failures", "worked", "least", "most"),
    [
        (ThrottledError("slow down"), 1, False, 0.1, 0.2),
        (ThrottledError("slow down"), 50, True, 3, 30),
        (AccessDeniedError("allow sqs:CreateQueue"), 1, False, 150, 450),
        (AccessDeniedError("allow sqs:ReceiveMessage"), 1, True, 0.1, 0.2),
        (AccessDeniedError("allow sqs:ReceiveMessage"), 50, True, 3, 30),
    ],
)
def test_an_error_that_stays_is_met_seldom_and_at_no_fixed_time(error, failures, worked, least, most):
    pauses = {inboxes._pause(error, failures, worked=worked) for _ in range(20)}
    assert len(pauses) > 1
    assert all(least <= each <= most for each in pauses)


def test_a_helper_that_cannot_be_started_is_no_helper_less(monkeypatch):
    monkeypatch.setattr(inboxes, "start_thread", lambda *_: None)
    world = World(FakeClock())
    queue = world.inbox._create()
    for _ in range(inboxes.MAX_HELPERS + 1):
        for _ in range(10):
            world.sqs.send(queue.url, OutgoingMessage("x"))
        world.turn()
    assert world.inbox._helpers.acquire(blocking=False)


def test_whoever_waits_for_the_address_of_one_that_ends_learns_it_at_once(world):
    world.inbox.stop()
    with pytest.raises(UnavailableError):
        world.inbox.address()


def test_what_one_receive_brings_is_delivered_in_the_order_in_which_it_was_sent(monkeypatch):
    world = World(FakeClock())
    queue = world.inbox._create()
    brought = [
        {"Body": body, "MessageId": body, "Attributes": {"SentTimestamp": sent}}
        for body, sent in (("resume", "1001"), ("pause", "999"))
    ]
    monkeypatch.setattr(world.sqs, "receive", lambda *_: brought)
    world.inbox._receive(queue, 0)
    assert [each["Body"] for each in world.messages] == ["pause", "resume"]


def test_a_message_whose_delivery_fails_takes_no_other_with_it(world, caplog):
    queue = world.inbox._create()
    world.sqs.send_batch(queue.url, [OutgoingMessage(body) for body in ("first", "second")])
    world.inbox._deliver = lambda message: {"second": world.messages.append}[message["Body"]](message)
    world.inbox._receive(queue, 0)
    assert [each["Body"] for each in world.messages] == ["second"]
    assert caplog.text.count("KeyError: 'first'") == 1
