"""A caller gets the replies to its own command, from one queue of its process."""

from __future__ import annotations

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.control import replies as module
from celery_sqs_visibility.control.replies import IDLE_SECONDS, Replies
from celery_sqs_visibility.control.wire import ControlMessage

EXCHANGE, OTHER = "reply.celery.pidbox", "reply.other.pidbox"


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
def clock():
    return FakeClock()


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
