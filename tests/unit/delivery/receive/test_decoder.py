"""From what a poll brought to deliveries: with an honest deadline, and nothing thrown away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.model import DeadLetter, Hide, Lapse
from celery_sqs_visibility.delivery.receive.decoder import (
    LONGEST_POLL,
    LONGEST_TRANSIT,
    Decoder,
    Opened,
    UnreadableError,
)
from celery_sqs_visibility.events import Facts, Received, Unreadable, subscribe
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON
from celery_sqs_visibility.policy.retry_delays import DelayFunction, DelayList

TIMEOUT = 120
QUEUE = Queue("q", "memory://q", FakeSQS())


def open_message(_queue, message):
    if message["Body"] == "unreadable":
        raise UnreadableError("nobody can read it")
    if message["Body"] == "broken":
        raise ZeroDivisionError
    return Opened({"body": message["Body"]}, "tasks.add", "id-1")


class World:
    def __init__(self, on_error=None, visibility_timeout=TIMEOUT):
        self.clock = FakeClock()
        self.settled = []
        redeliveries = RedeliveryIndex(visibility_timeout, self.clock)
        self.decoder = Decoder(open_message, visibility_timeout, on_error, self.clock, self, redeliveries)

    def settle(self, delivery, settlement):
        self.settled.append((delivery, settlement))
        return True

    def take_in(self, *messages, called=1000.0, returned=1000.0):
        return self.decoder.take_in(QUEUE, messages, called, returned)

    def delivery(self, **attributes):
        ((delivery, _, _),) = self.take_in(message(**attributes))
        return delivery


def message(number=1, body="body", **attributes):
    system = {"ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": "1700000000500"}
    return {
        "MessageId": f"m{number}",
        "ReceiptHandle": f"h{number}",
        "Body": body,
        "Attributes": {**system, **attributes},
    }


@pytest.fixture
def world():
    return World()


@pytest.fixture
def events():
    seen = []
    end = subscribe(seen.append)
    yield seen
    end()


def test_every_message_becomes_a_delivery_in_order(world):
    taken = world.take_in(message(1), message(2, "unreadable"), message(3))
    assert [delivery.handle for delivery, _, _ in taken] == ["h1", "h2", "h3"]
    assert [original["MessageId"] for _, _, original in taken] == ["m1", "m2", "m3"]


def test_a_delivery_knows_the_facts(world):
    delivery = world.delivery(ApproximateReceiveCount="3")
    told = Facts("q", "m1", 3, 1_700_000_000.5, "tasks.add", "id-1", received=world.clock.wall())
    assert delivery.facts == told
    assert delivery.queue is QUEUE


def test_a_delivery_was_received_when_the_answer_arrived_whatever_its_visibility_is_counted_from(world):
    world.clock.advance(20)  # of a long poll
    ((delivery, _, _),) = world.take_in(message(), called=1000.0, returned=1020.0)
    assert delivery.facts.received == world.clock.wall()
    assert delivery.deadline < 1020.0 + TIMEOUT


def test_what_sqs_does_not_tell_does_no_harm(world):
    ((delivery, _, _),) = world.take_in({"MessageId": "m", "ReceiptHandle": "h", "Body": "body"})
    assert delivery.facts.receive_count == 1


def test_an_unreadable_message_is_a_delivery_too(world):
    ((delivery, content, _),) = world.take_in(message(body="unreadable"))
    assert isinstance(content, UnreadableError)
    assert delivery.facts.task is None


def test_one_unreadable_message_does_not_cost_the_others(world):
    contents = [content for _, content, _ in world.take_in(message(1, "unreadable"), message(2))]
    assert isinstance(contents[0], UnreadableError)
    assert isinstance(contents[1], Opened)


def test_a_message_that_opening_stumbles_over_is_unreadable_and_does_not_cost_the_others(world, caplog):
    contents = [content for _, content, _ in world.take_in(message(1, "broken"), message(2))]
    assert isinstance(contents[0], UnreadableError)
    assert "ZeroDivisionError" in str(contents[0])
    assert isinstance(contents[1], Opened)
    assert "opening a message stumbled" in caplog.text


def test_every_receipt_is_told(world, events):
    taken = world.take_in(message(1), message(2, "unreadable"))
    assert events == [Received(delivery.facts) for delivery, _, _ in taken]


@given(st.floats(0, 20), st.integers(1, VISIBILITY_HORIZON))
def test_the_deadline_counts_from_before_the_answer_but_not_from_before_the_call(duration, timeout):
    world = World(visibility_timeout=timeout)
    ((delivery, _, _),) = world.take_in(message(), called=1000, returned=1000 + duration)
    since = delivery.deadline - timeout
    assert 1000 <= since <= 1000 + duration
    assert since == 1000 or since == pytest.approx(1000 + duration - min(LONGEST_TRANSIT, timeout / 10))
    assert delivery.horizon == 1000 + VISIBILITY_HORIZON


def test_the_deadline_of_an_answer_older_than_a_poll_may_last_counts_from_then(world):
    ((delivery, _, _),) = world.take_in(message(), called=1000, returned=1000 + 3600)
    assert delivery.deadline == 1000 + LONGEST_POLL + TIMEOUT


def test_a_delivery_settles_itself(world):
    delivery = world.delivery()
    assert delivery.settle(Hide(5))
    assert world.settled == [(delivery, Hide(5))]


def test_what_is_refused_becomes_a_dead_letter_and_is_hidden_where_there_are_none():
    world = World(on_error=DelayList((10, 60)))
    delivery = world.delivery(ApproximateReceiveCount="2")
    world.decoder.refuse(delivery, "no such task", "the body")
    assert world.settled == [(delivery, DeadLetter("no such task", "the body", otherwise=Hide(60)))]


def test_a_refused_message_is_told_of_once_however_often_it_comes_back(world, events):
    for receive_count in "123":
        delivery = world.delivery(ApproximateReceiveCount=receive_count)
        world.decoder.refuse(delivery, "why", "body")
    told = [event for event in events if isinstance(event, Unreadable)]
    assert [event.reason for event in told] == ["why"]
    assert len(world.settled) == 3


def test_without_an_error_visibility_timeout_it_comes_back_at_its_own_time(world):
    assert world.decoder.as_after_an_error(world.delivery()) == Lapse()


@pytest.mark.parametrize(("receive_count", "seconds"), [("1", 10), ("2", 61), ("7", 61)])
def test_the_error_visibility_timeout_goes_by_receives_in_whole_seconds(receive_count, seconds):
    world = World(on_error=DelayList((10, 60.5)))
    delivery = world.delivery(ApproximateReceiveCount=receive_count)
    assert world.decoder.as_after_an_error(delivery) == Hide(seconds)


def test_a_broken_error_visibility_timeout_is_logged_and_harmless(caplog):
    def broken(retries, exc):
        raise LookupError("a user's bug")

    world = World(on_error=DelayFunction(broken))
    assert world.decoder.as_after_an_error(world.delivery()) == Lapse()
    assert "a user's bug" in caplog.text
