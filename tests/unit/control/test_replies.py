"""A caller's reply does not wait for those to callers that have gone."""

import threading

import pytest
from support.clock import FakeClock
from support.factories import requests
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.control import replies as module
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.control.replies import (
    IDLE_SECONDS,
    MAX_IN_FLIGHT,
    REPLY_PAUSES_SECONDS,
    Replies,
    ReplySender,
)
from celery_sqs_visibility.control.wire import ControlMessage
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.events import ReplyDropped, subscribe
from celery_sqs_visibility.policy.control_names import address_in

EXCHANGE, OTHER = "reply.celery.pidbox", "reply.other.pidbox"
REPLY = {"body": '{"w@h": "pong"}', "content-type": "application/json", "content-encoding": "utf-8"}


class World:
    """A sender whose threads do not run: the test's own sends what is due."""

    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queues = ControlQueues(self.sqs, "p-", {}, self.clock)
        self.sender = ReplySender(self.queues, self.clock, Pump(self.clock))
        self.dropped = []

    def caller(self):
        return self.queues.create(EXCHANGE, "caller")

    def reply(self, *callers):
        for caller in callers:
            self.sender.reply(EXCHANGE, f"{address_in(caller)}.key", REPLY)

    def work(self, seconds=0.0):
        self.clock.advance(seconds)
        work_off(self.sender.lane)

    def got(self, caller):
        return len(self.sqs.receive(caller, 10, 0, ReceiveOptions()))


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(world.sender.lane, "start", lambda: None)
    end = subscribe(world.dropped.append, ReplyDropped)
    yield world
    end()


def test_replies_to_callers_that_have_gone_delay_no_other(world):
    gone, here = world.caller(), world.caller()
    world.queues.delete(gone)
    world.reply(*2 * MAX_IN_FLIGHT * [gone], here)
    world.work()
    assert world.got(here) == 1
    assert world.dropped == []
    for seconds in REPLY_PAUSES_SECONDS:
        world.work(seconds)
    assert len(world.dropped) == 2 * MAX_IN_FLIGHT


def test_a_refused_reply_is_dropped_at_once(world, caplog):
    world.sqs.fail_next("SendMessage", AccessDeniedError("allow sqs:SendMessage"))
    world.reply(world.caller())
    world.work()
    assert "cannot send the reply to a command: allow sqs:SendMessage" in caplog.text
    assert world.dropped == [ReplyDropped()]


def test_what_exceeds_the_bound_is_dropped_and_told(world, monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_CHARACTERS", 400)
    caller = world.caller()
    world.reply(caller, caller)
    world.work()
    assert (world.got(caller), world.dropped) == (1, [ReplyDropped()])
    assert "too many wait for SQS" in caplog.text


def test_a_process_that_ends_sends_what_was_not_tried():
    world = World()
    gone, here = world.caller(), world.caller()
    world.queues.delete(gone)
    world.reply(gone, here)
    world.sender.close(SOON)
    assert world.got(here) == 1
    pump = world.sender.lane._pump
    wait_until(lambda: world.work(1) or not pump._threads, SOON, "its threads to end")


def test_whoever_waits_for_the_last_replies_is_woken_by_them(world):
    caller = world.caller()
    world.reply(caller)
    waits = threading.Thread(target=world.sender.close, args=[3600.0], daemon=True)
    waits.start()
    wait_until(lambda: world.sender.lane._pump.waiting, SOON, "the thread to wait")
    world.work()
    waits.join(SOON)
    assert not waits.is_alive()


def test_an_end_without_replies_waits_for_none(world):
    world.reply(world.caller())
    world.work()
    world.sender.close(3600.0)


def test_replies_that_were_sent_or_dropped_make_room_for_others(world, monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARACTERS", 400)
    gone, here = world.caller(), world.caller()
    for number in range(5):
        world.reply(here)
        world.work()
        assert world.got(here) == 1, number
    world.queues.delete(gone)
    world.reply(gone)
    world.work()
    for seconds in REPLY_PAUSES_SECONDS:
        world.reply(here)
        assert world.dropped, "the first waits for another attempt"
        world.dropped.clear()
        world.work(seconds)
    world.dropped.clear()
    world.reply(here)
    world.work()
    assert (world.got(here), world.dropped) == (1, [])


def test_each_attempt_at_a_reply_waits_for_its_pause(world):
    caller = world.caller()
    for _ in REPLY_PAUSES_SECONDS:
        world.sqs.fail_next("SendMessage", UnavailableError("not now"))
    world.reply(caller)
    world.work()
    for number, seconds in enumerate(REPLY_PAUSES_SECONDS, 1):
        world.work(seconds - 0.01)
        assert len(requests(world.sqs, "SendMessage")) == number
        world.work(0.01)
    assert (world.got(caller), world.dropped) == (1, [])


def test_of_replies_that_wait_the_earliest_is_due_first_and_each_takes_a_thread(world):
    here, later = world.caller(), world.caller()
    sender, now = world.sender, world.clock.monotonic()
    assert (sender.due(now), sender.ready(), sender.take(now)) == (None, 0, None)
    world.sqs.fail_next("SendMessage", UnavailableError("not now"))
    world.reply(later)
    world.work()
    assert sender.due(now) == now + REPLY_PAUSES_SECONDS[0]
    assert sender.take(now) is None
    world.reply(here)
    assert (sender.due(now), sender.ready()) == (now, 2)
    ((first,), second) = sender.take(now), sender.take(now)
    assert (first.url, second) == (here, None)


def test_a_dropped_reply_is_counted_once_and_says_why(world, caplog):
    caplog.set_level("INFO")
    gone = world.caller()
    world.queues.delete(gone)
    world.reply(gone)
    world.work()
    for seconds in REPLY_PAUSES_SECONDS:
        world.work(seconds)
    assert world.dropped == [ReplyDropped()]
    assert caplog.text.count("its caller has gone") == 1
    world.work(10)
    assert len(requests(world.sqs, "SendMessage")) == 1 + len(REPLY_PAUSES_SECONDS)


def test_a_reply_starts_the_threads_that_send_it(world, monkeypatch):
    started = []
    monkeypatch.setattr(world.sender.lane, "start", lambda: started.append(1))
    world.reply(world.caller())
    assert started == [1]


class StubInbox:
    """An inbox that neither polls nor makes a queue."""

    def __init__(self, _queues, exchange, node, deliver, _clock, *, wanted, idle_seconds):
        self.exchange, self.node, self.deliver = exchange, node, deliver
        self.wanted, self.idle_seconds = wanted, idle_seconds
        self.starts = self.uses = 0
        self.has_ended = False

    def start(self):
        self.starts += 1

    def use(self):
        self.uses += 1
        return not self.has_ended

    def address(self):
        return f"address-of-{self.exchange}"


@pytest.fixture
def inboxes(monkeypatch):
    made = []

    def make(*args, **options):
        made.append(StubInbox(*args, **options))
        return made[-1]

    monkeypatch.setattr(module, "Inbox", make)
    return made


@pytest.fixture
def replies(inboxes, clock):
    return Replies(None, lambda received: received, clock)


def command(replies, key="key", ticket="ticket"):
    return replies.address_for({"exchange": EXCHANGE, "routing_key": key}, ticket)


def reply(number, key="key", ticket="ticket"):
    headers = {} if ticket is None else {"ticket": ticket}
    return ControlMessage(f"id {number}", {"n": number, "headers": headers}, key, None, {})


@pytest.fixture
def collect(replies):
    """`collect(key)`: the numbers of the replies that its consumer gets."""

    def collect(key="key"):
        got = []
        replies.collect(key, lambda payload, is_in_time: got.append(payload["n"]) if is_in_time() else None)
        return got

    return collect


def test_commands_name_the_queue_of_their_process_which_is_made_once(replies, inboxes):
    assert command(replies) == {"exchange": EXCHANGE, "routing_key": f"address-of-{EXCHANGE}.key"}
    assert command(replies, "next")["routing_key"] == f"address-of-{EXCHANGE}.next"
    (inbox,) = inboxes
    assert (inbox.starts, inbox.uses, inbox.idle_seconds) == (1, 1, IDLE_SECONDS)


def test_each_exchange_has_a_queue_of_its_own(replies, inboxes):
    replies.inbox(EXCHANGE)
    replies.inbox(OTHER)
    assert [each.exchange for each in inboxes] == [EXCHANGE, OTHER]


def test_after_a_queue_that_was_given_up_another_is_made(replies, inboxes):
    first = replies.inbox(EXCHANGE)
    first.has_ended = True
    second = replies.inbox(EXCHANGE)
    assert second is not first
    assert replies.inbox(EXCHANGE) is second
    assert second.starts == 1


def test_a_reply_goes_to_the_caller_with_its_ticket_and_to_no_other(replies, inboxes, collect):
    command(replies, "one", "a")
    command(replies, "two", "b")
    one, two = collect("one"), collect("two")
    for number, (key, ticket) in enumerate(
        [("one", "a"), ("two", "b"), ("one", "b"), ("three", "a"), ("one", None), ("one", "a")]
    ):
        inboxes[0].deliver(reply(number, key, ticket))
    assert (one, two) == ([0, 5], [1])


def test_a_reply_that_cannot_be_read_is_passed_over(replies, inboxes, collect):
    command(replies)
    got = collect()
    inboxes[0].deliver(None)
    assert got == []


def test_replies_that_come_before_the_consumer_wait_for_it(replies, inboxes, collect):
    command(replies)
    inboxes[0].deliver(reply(1))
    assert collect() == [1]


def test_a_consumer_that_came_before_its_command_gets_the_replies_to_it(replies, inboxes, collect):
    got = collect()
    command(replies, ticket="one")
    command(replies, ticket="two")
    for number, ticket in enumerate(("one", "two")):
        inboxes[0].deliver(reply(number, ticket=ticket))
    assert got == [0, 1]


def test_a_caller_that_is_gone_gets_no_more(replies, inboxes, collect):
    command(replies)
    got = collect()
    for _ in range(2):
        replies.forget("key")
    inboxes[0].deliver(reply(1))
    assert got == []


def test_a_queue_is_wanted_while_a_caller_waits(replies, inboxes, collect):
    command(replies, "one")
    command(replies, "two")
    wanted = inboxes[0].wanted
    assert not wanted()
    collect("two")
    assert wanted()
    replies.forget("two")
    assert not wanted()


def test_callers_that_never_came_are_forgotten_after_a_while_and_those_that_wait_are_not(
    replies, inboxes, clock, collect
):
    for key in ("never", "waits"):
        command(replies, key)
    got = collect("waits")
    clock.advance(1)
    command(replies, "later")
    clock.advance(IDLE_SECONDS - 1)
    command(replies, "last")
    for number, key in enumerate(("waits", "never", "later", "last")):
        inboxes[0].deliver(reply(number, key))
    assert (got, collect("never"), collect("later"), collect("last")) == ([0], [], [2], [3])


def test_a_process_that_ends_ends_its_queues_and_collects_no_more(replies, inboxes, collect):
    command(replies)
    got = collect()
    replies.inbox(OTHER)
    assert replies.close() == inboxes
    inboxes[0].deliver(reply(1))
    assert (got, inboxes[0].wanted(), replies.close()) == ([], False, [])
