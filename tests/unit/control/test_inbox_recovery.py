"""An inbox that is stopped, refused or without its queue wakes its callers, and leaves no queue behind."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from support.clock import FakeClock
from support.factories import requests
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import inbox as inboxes
from celery_sqs_visibility.control.inbox import (
    MAX_HELPERS,
    NEW_SECONDS,
    PAUSE_SECONDS,
    REFUSED_PAUSE_SECONDS,
    SHORT_PAUSES,
    SWEEP_SECONDS,
    Inbox,
)
from celery_sqs_visibility.control.queues import SIGN_OF_LIFE_SECONDS, ControlQueues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
)

EXCHANGE = "celery.pidbox"
NEVER = 3600.0  # a wait that only a wake-up ends
GONE = QueueDoesNotExistError("gone")
REFUSED = AccessDeniedError("allow sqs:CreateQueue")


class EnoughError(BaseException):
    """Ends the loop of an inbox's thread."""


class World:
    """An inbox whose thread is the test's, and whose pauses take no time."""

    def __init__(self, **options):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queues = ControlQueues(self.sqs, "p-", {}, self.clock)
        self.messages, self.started, self.pauses = [], [], []
        self.inbox = Inbox(self.queues, EXCHANGE, "a@host", self.messages.append, self.clock, **options)
        self.inbox._stopped.wait = self.pauses.append

    def start_thread(self, act, name, *args):
        """A thread that ends as it begins."""
        self.started.append(name)
        act(*args)
        return SimpleNamespace(is_alive=lambda: False, join=lambda _seconds: None)

    def turn(self):
        self.inbox._poll(self.inbox._queue or self.inbox._create())

    def run(self, turns):
        """What the thread does, so many turns; how many it has not begun."""
        turn, left = self.inbox._poll, [None] * turns

        def one_of_them(queue):
            if not left:
                raise EnoughError
            left.pop()
            turn(queue)

        self.inbox._poll = one_of_them
        with suppress(EnoughError):
            self.inbox._run()
        self.inbox._poll = turn
        return len(left)

    def urls(self):
        return self.sqs.list_queues("p-")


@pytest.fixture
def make(monkeypatch):
    def make(**options):
        world = World(**options)
        monkeypatch.setattr(inboxes, "start_thread", world.start_thread)
        return world

    return make


@pytest.fixture
def world(make):
    return make()


@pytest.fixture
def told(world, monkeypatch):
    """`told()`: what a thread was told that has waited for the address since before the call."""
    monkeypatch.setattr(inboxes, "CREATION_SECONDS", NEVER)
    outcomes = []

    def ask():
        try:
            outcomes.append(world.inbox.address())
        except (AccessDeniedError, UnavailableError) as error:
            outcomes.append(type(error))

    def told():
        thread.join(SOON)
        return outcomes

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    wait_until(lambda: world.inbox._changed._waiters, SOON, "the thread to wait")
    return told


def test_whoever_waits_for_the_address_is_woken_when_sqs_has_answered_a_poll(world, told):
    world.turn()
    assert told() == [world.inbox._queue.address]


def test_whoever_waits_for_the_address_is_woken_by_the_error_of_its_creation(world, told):
    world.inbox._failed(REFUSED)
    assert told() == [AccessDeniedError]


def test_whoever_waits_for_the_address_is_woken_when_the_inbox_stops(world, told):
    world.inbox.stop()
    assert told() == [UnavailableError]


def test_an_address_whose_queue_is_not_there_in_time_is_an_error(world, monkeypatch):
    monkeypatch.setattr(inboxes, "CREATION_SECONDS", 0)
    world.inbox._create()
    with pytest.raises(UnavailableError, match="no queue for the replies was made"):
        world.inbox.address()


def test_a_queue_that_is_made_while_the_inbox_stops_is_deleted(world):
    world.inbox.stop()
    with pytest.raises(QueueDoesNotExistError, match="stopped while it was made"):
        world.inbox._create()
    assert len(requests(world.sqs, "CreateQueue")) == 1
    assert world.urls() == []
    assert world.inbox._queue is None


def test_a_stop_deletes_the_queue_in_a_thread_and_a_second_one_does_nothing(world):
    world.turn()
    world.inbox.stop()
    world.inbox.stop()
    assert world.started == ["sqs-control-delete"]
    assert world.urls() == []
    assert not world.inbox.is_deleting


def test_a_stop_without_a_queue_deletes_none(world):
    world.inbox.stop()
    world.inbox.join(0)
    assert world.started == []
    assert requests(world.sqs, "DeleteQueue") == []


def test_a_stop_while_the_interpreter_ends_deletes_the_queue_itself(world, monkeypatch):
    world.turn()
    monkeypatch.setattr(inboxes, "start_thread", lambda *_: None)
    world.inbox.stop()
    assert world.urls() == []
    assert not world.inbox.is_deleting
    assert len(requests(world.sqs, "DeleteQueue")) == 1


def test_a_queue_is_being_deleted_while_the_thread_that_deletes_it_lives(world, monkeypatch):
    joined = []
    thread = SimpleNamespace(is_alive=lambda: not joined, join=joined.append)
    monkeypatch.setattr(inboxes, "start_thread", lambda *_: thread)
    world.turn()
    world.inbox.stop()
    assert world.inbox.is_deleting
    world.inbox.join(1.5)
    assert joined == [1.5]
    assert not world.inbox.is_deleting


def test_a_thread_that_cannot_be_started_is_an_error(world, monkeypatch):
    monkeypatch.setattr(inboxes, "start_thread", lambda *_: None)
    with pytest.raises(RuntimeError, match="cannot start the thread that polls a control queue"):
        world.inbox.start()


def test_monitors_are_told_of_another_queue_and_not_of_the_first(make):
    moves = []
    world = make(moved=lambda: moves.append(1))
    world.turn()
    assert moves == []
    world.clock.advance(NEW_SECONDS)
    world.inbox._failed(GONE)
    world.turn()
    assert moves == [1]


def test_an_address_is_not_given_away_before_the_next_queue_has_answered(world, monkeypatch):
    monkeypatch.setattr(inboxes, "CREATION_SECONDS", 0)
    world.turn()
    first = world.inbox.address()
    world.clock.advance(NEW_SECONDS)
    world.inbox._failed(GONE)
    with pytest.raises(UnavailableError):
        world.inbox.address()
    world.turn()
    assert world.inbox.address() != first


def test_a_queue_that_is_gone_is_no_outage_and_its_successor_is_made_at_once(world, caplog):
    world.turn()
    world.clock.advance(NEW_SECONDS)
    world.inbox._failed(GONE)
    assert (world.pauses, caplog.text) == ([], "")


def test_a_new_queue_is_polled_again_after_a_moment(world, caplog):
    world.turn()
    world.clock.advance(NEW_SECONDS - 0.1)
    world.inbox._failed(GONE)
    assert (world.pauses, caplog.text) == ([inboxes.NEW_PAUSE_SECONDS], "")


def test_an_error_after_the_stop_is_neither_told_nor_waited_for(world, caplog):
    world.turn()
    world.inbox.stop()
    world.inbox._failed(REFUSED)
    assert (world.pauses, world.inbox._error, caplog.text) == ([], None, "")


def test_an_error_of_a_queue_that_works_is_not_told_to_callers(world):
    world.turn()
    world.inbox._failed(ThrottledError("slow down"))
    assert world.inbox.address() == world.inbox._queue.address
    assert len(world.pauses) == 1


def test_an_error_of_the_creation_is_forgotten_when_a_queue_was_made(world, monkeypatch):
    monkeypatch.setattr(inboxes, "CREATION_SECONDS", 0)
    world.inbox._failed(REFUSED)
    with pytest.raises(AccessDeniedError):
        world.inbox.address()
    world.inbox._create()
    with pytest.raises(UnavailableError):
        world.inbox.address()


@pytest.mark.parametrize(
    ("options", "error", "lives"),
    [
        ({"idle_seconds": 60.0}, REFUSED, False),
        ({"idle_seconds": 60.0}, ThrottledError("slow down"), True),
        ({}, REFUSED, True),
    ],
)
def test_a_refused_creation_ends_the_inbox_of_a_caller_who_has_the_error_and_no_other(
    make, options, error, lives
):
    world = make(**options)
    world.inbox._failed(error)
    assert world.inbox.use() == lives


def test_a_refusal_does_not_end_the_inbox_of_a_caller_whose_queue_works(make):
    world = make(idle_seconds=60.0)
    world.turn()
    world.inbox._failed(REFUSED)
    assert world.inbox.use()


def test_pauses_grow_with_the_errors_in_a_row_and_start_anew_after_a_success(world, monkeypatch):
    failures = []
    monkeypatch.setattr(inboxes, "_pause", lambda _error, number, **_: failures.append(number) or 0.0)
    for _ in range(2):
        for _ in range(2):
            world.sqs.fail_next("ReceiveMessage", ThrottledError("slow down"))
        world.run(3)
    assert failures == [1, 2, 1, 2]


def test_few_errors_are_followed_by_the_pauses_of_any_request_and_more_by_long_ones(monkeypatch):
    monkeypatch.setattr(inboxes, "pause", lambda failures: -failures)
    error = ThrottledError("slow down")
    assert inboxes._pause(error, SHORT_PAUSES, worked=False) == -SHORT_PAUSES
    assert inboxes._pause(error, SHORT_PAUSES + 1, worked=False) > 0
    assert inboxes._pause(REFUSED, 1, worked=False) > REFUSED_PAUSE_SECONDS / 3
    assert inboxes._pause(REFUSED, SHORT_PAUSES, worked=True) == -SHORT_PAUSES


def test_a_thread_goes_on_after_a_bug_and_a_pause(world, monkeypatch, caplog):
    monkeypatch.setattr(world.sqs, "receive", lambda *_: 1 / 0)
    assert world.run(2) == 0
    assert world.pauses == [PAUSE_SECONDS] * 2
    assert caplog.text.count(inboxes.UNEXPECTED) == 2


def test_a_thread_ends_when_its_inbox_has_stopped(world):
    world.inbox.stop()
    assert world.run(1) == 1


def test_a_queue_that_was_used_a_moment_ago_is_kept_and_an_idle_one_given_up(make):
    world = make(wanted=lambda: False, idle_seconds=60.0)
    world.turn()
    for _ in range(3):
        world.clock.advance(59)
        assert world.inbox.use()
        world.turn()
    world.clock.advance(59.9)
    world.turn()
    assert len(world.urls()) == 1
    world.clock.advance(0.1)
    world.turn()
    assert world.urls() == []
    assert not world.inbox.use()


def test_a_queue_that_is_waited_at_is_used(make):
    wanted = [True]
    world = make(wanted=lambda: bool(wanted), idle_seconds=60.0)
    for _ in range(3):
        world.turn()
        world.clock.advance(60)
    assert len(world.urls()) == 1
    world.turn()
    wanted.clear()
    world.clock.advance(59)
    world.turn()
    assert len(world.urls()) == 1


def test_an_inbox_whose_consumer_is_full_polls_no_more_and_looks_again_soon(make):
    world = make(is_full=lambda: True)
    world.turn()
    assert world.pauses == [inboxes.FULL_PAUSE_SECONDS]
    assert requests(world.sqs, "ReceiveMessage") == []


def test_a_queue_is_tagged_when_its_sign_of_life_is_due_and_not_before(world):
    world.turn()
    world.clock.advance(SIGN_OF_LIFE_SECONDS - 1)
    world.turn()
    assert requests(world.sqs, "TagQueue") == []
    for _ in range(2):
        world.clock.advance(1)
        world.turn()
    assert len(requests(world.sqs, "TagQueue")) == 1
    world.clock.advance(SIGN_OF_LIFE_SECONDS)
    world.turn()
    assert len(requests(world.sqs, "TagQueue")) == 2


def test_each_exchange_is_swept_in_a_thread_of_its_own(make):
    world = make(sweeps=["one", "two"])
    world.inbox._sweep_at = world.clock.monotonic() + 1
    world.turn()
    assert world.started == []
    world.clock.advance(1)
    world.turn()
    world.turn()
    assert world.started == ["sqs-control-sweep"] * 2
    assert world.inbox._sweep_at > world.clock.monotonic()
    assert math.isfinite(world.inbox._sweep_at)


def test_a_helper_polls_until_a_batch_is_not_full_and_makes_room_for_another(world):
    queue = world.inbox._create()
    for _ in range(25):
        world.sqs.send(queue.url, OutgoingMessage("reply"))
    world.turn()
    assert len(world.messages) == 25
    assert world.started == ["sqs-control-inbox"]
    waits = [each["wait"] for each in requests(world.sqs, "ReceiveMessage")]
    assert waits == [0, inboxes.HELPER_WAIT_SECONDS, inboxes.HELPER_WAIT_SECONDS]
    for _ in range(MAX_HELPERS):
        assert world.inbox._helpers.acquire(blocking=False)
    assert not world.inbox._helpers.acquire(blocking=False)


def test_no_more_helpers_are_started_than_there_may_be(world):
    queue = world.inbox._create()
    for _ in range(MAX_HELPERS):
        world.inbox._helpers.acquire()
    world.inbox._get_help(queue)
    assert world.started == []


def test_a_helper_ends_with_its_inbox(world):
    queue = world.inbox._create()
    for _ in range(20):
        world.sqs.send(queue.url, OutgoingMessage("reply"))
    world.inbox._stopped.set()
    world.inbox._helpers.acquire()
    world.inbox._help(queue)
    assert world.messages == []


@pytest.mark.parametrize(("chance", "most"), [(min, 0.5), (max, 1.5)])
def test_sweeps_of_a_fleet_are_spread_over_an_hour(make, monkeypatch, chance, most):
    monkeypatch.setattr(inboxes.random, "uniform", lambda *bounds: chance(bounds))
    world = make(sweeps=["one"])
    world.inbox._sweep_at = now = world.clock.monotonic()
    world.turn()
    assert world.inbox._sweep_at == now + most * SWEEP_SECONDS


def test_a_message_that_does_not_say_when_it_was_sent_goes_first(world, monkeypatch):
    queue = world.inbox._create()
    brought = [{"Body": "later", "Attributes": {"SentTimestamp": "1"}}, {"Body": "first", "Attributes": {}}]
    monkeypatch.setattr(world.sqs, "receive", lambda *_: brought)
    world.inbox._receive(queue, 0)
    assert [each["Body"] for each in world.messages] == ["first", "later"]
