"""An inbox that is stopped, refused or without its queue wakes its callers, and leaves no queue behind."""

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
    FIRST_SWEEP_SECONDS,
    MAX_HELPERS,
    NEW_SECONDS,
    PAUSE_SECONDS,
    SWEEP_SECONDS,
    Inbox,
    Mailbox,
)
from celery_sqs_visibility.control.queues import SIGN_OF_LIFE_SECONDS, ControlQueues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.control_names import address_in

EXCHANGE = "celery.pidbox"
NEVER = 3600.0  # a wait that only a wake-up ends
GONE = QueueDoesNotExistError("gone")
REFUSED = AccessDeniedError("allow sqs:CreateQueue")


class EnoughError(BaseException):
    """Ends the loop of an inbox's thread."""


class World:
    """An inbox whose thread is the test's, and whose pauses take no time."""

    def __init__(self, clock=None, **options):
        self.clock = clock or FakeClock()
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
        self.inbox._poll(self.inbox._url or self.inbox._create())

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
    assert told() == [address_in(world.inbox._url)]


@pytest.mark.parametrize(
    ("end", "error"),
    [(lambda inbox: inbox._failed(REFUSED), AccessDeniedError), (Inbox.stop, UnavailableError)],
    ids=["its creation failed", "it stops"],
)
def test_whoever_waits_for_the_address_is_woken_where_there_will_be_none(world, told, end, error):
    end(world.inbox)
    assert told() == [error]


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
    assert world.inbox._url is None


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
    assert world.inbox.address() == address_in(world.inbox._url)
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
        world.sqs.send(queue, OutgoingMessage("reply"))
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
        world.sqs.send(queue, OutgoingMessage("reply"))
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


class LiveWorld(World):
    """An inbox with threads of its own."""

    def __init__(self):
        super().__init__(SYSTEM_CLOCK)
        self.inbox._stopped = threading.Event()


@pytest.fixture
def live():
    live = LiveWorld()
    yield live
    live.inbox.stop()
    wait_until(lambda: not inboxes_threads(), SOON, "its threads to end")


def inboxes_threads():
    return [each for each in threading.enumerate() if each.name.startswith("sqs-control")]


def test_messages_are_received_once_and_the_queue_ends_with_it(live):
    live.inbox.start()
    (url,) = (live.queues.url_of(EXCHANGE, live.inbox.address()),)
    live.sqs.send(url, OutgoingMessage("hello"))
    wait_until(lambda: live.messages, SOON, "the message")
    assert live.messages[0]["Body"] == "hello"
    assert requests(live.sqs, "DeleteMessageBatch") == []
    live.inbox.stop()
    live.inbox.stop()
    live.inbox.join(SOON)
    assert live.urls() == []
    assert not live.inbox.use()


def test_who_is_slow_has_the_rest_stay_at_sqs(monkeypatch):
    monkeypatch.setattr(inboxes, "FULL_PAUSE_SECONDS", 0)
    live = World(is_full=lambda: len(live.messages) >= 10)
    queue = live.inbox._create()
    for _ in range(12):
        live.sqs.send(queue, OutgoingMessage("event"))
    live.turn()
    live.inbox._helpers.acquire()
    live.inbox._help(queue)
    live.turn()
    assert len(live.messages) == 10
    live.messages.clear()
    live.turn()
    assert len(live.messages) == 2


def test_the_first_poll_after_an_error_is_short_so_that_its_end_is_known_soon():
    live = World()
    live.turn()
    live.turn()
    live.inbox._failed(ThrottledError("slow down"))
    live.turn()
    assert [each["wait"] for each in requests(live.sqs, "ReceiveMessage")] == [0, 20, 1]


def test_it_polls_on_while_its_sign_of_life_is_refused(caplog):
    live = World()
    live.turn()
    live.clock.advance(SIGN_OF_LIFE_SECONDS)
    live.sqs.fail_next("TagQueue", AccessDeniedError("allow sqs:TagQueue"))
    live.turn()
    assert len(requests(live.sqs, "ReceiveMessage")) == 2
    assert "cannot tag the control queue of a@host with a sign of life" in caplog.text


def test_many_messages_are_received_by_several_threads_and_each_once(live):
    live.inbox.start()
    url = live.queues.url_of(EXCHANGE, live.inbox.address())
    for number in range(300):
        live.sqs.send(url, OutgoingMessage(str(number)))
    wait_until(lambda: len(live.messages) >= 300, SOON, "all messages")
    assert sorted(int(each["Body"]) for each in live.messages) == list(range(300))


def test_a_helper_ends_with_its_error(live):
    queue = live.inbox._create()
    for _ in range(2 * inboxes.MAX_HELPERS):
        live.sqs.fail_next("ReceiveMessage", AccessDeniedError("no"))
        live.inbox._helpers.acquire()
        live.inbox._help(queue)


def test_a_fleet_does_nothing_at_the_same_time():
    worlds = [World(sweeps=[EXCHANGE]) for _ in range(20)]
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
    live = World()
    queue = live.inbox._create()
    for _ in range(inboxes.MAX_HELPERS + 1):
        for _ in range(10):
            live.sqs.send(queue, OutgoingMessage("x"))
        live.turn()
    assert live.inbox._helpers.acquire(blocking=False)


def test_what_one_receive_brings_is_delivered_in_the_order_in_which_it_was_sent(monkeypatch):
    live = World()
    queue = live.inbox._create()
    brought = [
        {"Body": body, "MessageId": body, "Attributes": {"SentTimestamp": sent}}
        for body, sent in (("resume", "1001"), ("pause", "999"))
    ]
    monkeypatch.setattr(live.sqs, "receive", lambda *_: brought)
    live.inbox._receive(queue, 0)
    assert [each["Body"] for each in live.messages] == ["pause", "resume"]


def test_a_message_whose_delivery_fails_takes_no_other_with_it(live, caplog):
    queue = live.inbox._create()
    live.sqs.send_batch(queue, [OutgoingMessage(body) for body in ("first", "second")])
    live.inbox._deliver = lambda message: {"second": live.messages.append}[message["Body"]](message)
    live.inbox._receive(queue, 0)
    assert [each["Body"] for each in live.messages] == ["second"]
    assert caplog.text.count("KeyError: 'first'") == 1


def is_in_time():
    return True


@pytest.fixture
def got():
    return []


@pytest.fixture
def put(got):
    return lambda payload, may_run: got.append((payload["n"], may_run))


def test_messages_that_come_before_the_consumer_wait_for_it_in_their_order(put, got):
    mailbox = Mailbox()
    for number in range(3):
        mailbox.put({"n": number}, is_in_time)
    assert (mailbox.is_open, got) == (False, [])
    mailbox.open(put)
    assert mailbox.is_open
    assert got == [(0, is_in_time), (1, is_in_time), (2, is_in_time)]


def test_messages_that_waited_are_given_to_one_consumer_only(put, got):
    mailbox = Mailbox()
    mailbox.put({"n": 1}, is_in_time)
    for _ in range(2):
        mailbox.open(put)
    assert got == [(1, is_in_time)]


def test_a_consumer_gets_its_messages_at_once_and_when_it_is_gone_they_wait_for_the_next(put, got):
    mailbox = Mailbox()
    mailbox.open(put)
    mailbox.put({"n": 1}, is_in_time)
    assert got == [(1, is_in_time)]
    mailbox.close()
    mailbox.put({"n": 2}, is_in_time)
    assert (mailbox.is_open, len(got)) == (False, 1)
    mailbox.open(put)
    mailbox.put({"n": 3}, is_in_time)
    assert [number for number, _ in got] == [1, 2, 3]


def test_a_message_that_is_received_twice_is_delivered_once_and_one_that_is_handed_on_again(put, got):
    mailbox = Mailbox()
    mailbox.open(put)
    for message_id, number in (("a", 1), ("a", 1), ("b", 2)):
        mailbox.deliver(message_id, {"n": number}, is_in_time)
    assert got == [(1, is_in_time), (2, is_in_time)]
    mailbox.put({"n": 1}, is_in_time)
    assert len(got) == 3
