"""From what a poll brought to deliveries: with an honest deadline, and nothing thrown away."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock
from support.factories import TIMEOUT, every_queue, sqs_queue

from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.delivery.receive.content import MAX_TEXT_CHARACTERS, DecodedMessage
from celery_sqs_visibility.delivery.receive.decoder import (
    MAX_POLL_SECONDS,
    MAX_TRANSIT_SECONDS,
    NOT_TAKEN,
    Decoder,
    ReadLater,
    UnreadableError,
)
from celery_sqs_visibility.events import DeliveryFacts, Received
from celery_sqs_visibility.policy.payload_pointers import NO_PAYLOADS
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

QUEUE = sqs_queue()


def open_message(_queue, message):
    if message["Body"] == "unreadable":
        raise UnreadableError("nobody can read it")
    if message["Body"] == "broken":
        raise ZeroDivisionError
    if message["Body"] == "large":
        raise MemoryError
    if message["Body"] == "its names are not to be shown":
        return DecodedMessage({}, "a\nb", "i" * (MAX_TEXT_CHARACTERS + 1))
    return DecodedMessage({"body": message["Body"]}, "tasks.add", "id-1")


class World:
    def __init__(self, visibility_timeout=TIMEOUT, **options):
        self.clock = FakeClock()
        self.settled = []
        self.options = SimpleNamespace(
            for_queue=every_queue(visibility_timeout), readable_payloads=NO_PAYLOADS
        )
        self.decoder = Decoder(open_message, self, self.clock, **options)

    def settle(self, delivery, settlement):
        self.settled.append((delivery, settlement))
        return True

    def decode(self, *messages, called=1000.0, returned=1000.0):
        return self.decoder.decode(QUEUE, messages, called, returned)

    def delivery(self, **attributes):
        ((delivery, _, _),) = self.decode(message(**attributes))
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


@pytest.mark.parametrize(
    ("body", "why", "cause"),
    [
        ("unreadable", "nobody can read it", type(None)),
        ("broken", "ZeroDivisionError", ZeroDivisionError),  # it is logged where the message is refused
    ],
)
def test_every_message_becomes_a_delivery_in_order_and_one_unreadable_does_not_cost_the_others(
    world, events, body, why, cause
):
    taken = world.decode(message(1), message(2, body), message(3))
    assert [delivery.handle for delivery, _, _ in taken] == ["h1", "h2", "h3"]
    assert [original["MessageId"] for _, _, original in taken] == ["m1", "m2", "m3"]
    contents = [content for _, content, _ in taken]
    assert [type(content) for content in contents] == [DecodedMessage, UnreadableError, DecodedMessage]
    assert why in str(contents[1])
    assert isinstance(contents[1].__cause__, cause)
    assert taken[1][0].facts.task is None
    assert events.seen == [Received(delivery.facts, TIMEOUT) for delivery, _, _ in taken]


def test_a_message_for_which_memory_lacks_is_no_unreadable_one(world):
    ((delivery, content, _),) = world.decode(message(1, "large"))
    assert isinstance(content, ReadLater)
    assert isinstance(content.error, MemoryError)
    assert delivery.facts.message_id == "m1"


def test_a_delivery_knows_the_facts_and_settles_itself(world):
    delivery = world.delivery(ApproximateReceiveCount="3")
    told = DeliveryFacts(
        "q", "m1", 3, 1_700_000_000.5, "tasks.add", "id-1", received=world.clock.wall(), attempt=3
    )
    assert delivery.facts == told
    assert delivery.queue is QUEUE
    assert delivery.settle(Hide(5))
    assert world.settled == [(delivery, Hide(5))]


def test_a_delivery_was_received_when_the_answer_arrived_whatever_its_visibility_is_counted_from(world):
    world.clock.advance(20)  # of a long poll
    ((delivery, _, _),) = world.decode(message(), called=1000.0, returned=1020.0)
    assert delivery.facts.received == world.clock.wall()
    assert delivery.deadline < 1020.0 + TIMEOUT


def test_what_sqs_does_not_tell_does_no_harm(world):
    ((delivery, _, _),) = world.decode({"MessageId": "m", "ReceiptHandle": "h", "Body": "body"})
    assert delivery.facts.receive_count == 1


@given(st.floats(0, 20), st.integers(1, VISIBILITY_HORIZON_SECONDS))
def test_the_deadline_counts_from_before_the_answer_but_not_from_before_the_call(duration, timeout):
    world = World(visibility_timeout=timeout)
    ((delivery, _, _),) = world.decode(message(), called=1000, returned=1000 + duration)
    since = delivery.deadline - timeout
    assert 1000 <= since <= 1000 + duration
    assert since == 1000 or since == pytest.approx(1000 + duration - min(MAX_TRANSIT_SECONDS, timeout / 10))
    assert delivery.horizon == 1000 + VISIBILITY_HORIZON_SECONDS


def test_the_deadline_of_an_answer_older_than_a_poll_may_last_counts_from_then(world):
    ((delivery, _, _),) = world.decode(message(), called=1000, returned=1000 + 3600)
    assert delivery.deadline == 1000 + MAX_POLL_SECONDS - MAX_TRANSIT_SECONDS + TIMEOUT


@pytest.mark.parametrize(("stopped_at", "since"), [(1004, 1003), (1000.5, 1000), (1012, 1011)])
def test_an_answer_may_have_waited_for_a_process_that_was_stopped(stopped_at, since):
    world = World(stopped_at=lambda called, returned: stopped_at)
    ((delivery, _, _),) = world.decode(message(), called=1000, returned=1012)
    assert delivery.deadline == since + TIMEOUT


def test_a_delivery_knows_when_its_message_was_sent(world):
    assert world.delivery(SentTimestamp="1700000000250").facts.sent == 1_700_000_000.25
    assert world.delivery().facts.sent == 0


def test_what_cannot_be_a_delivery_does_not_cost_the_others(world, caplog):
    broken = message(1)
    del broken["ReceiptHandle"]
    ((delivery, _, _),) = world.decode(broken, message(2))
    assert delivery.handle == "h2"
    assert caplog.messages == [NOT_TAKEN]


def test_a_delivery_knows_its_task_by_names_that_can_be_logged(world):
    ((delivery, _, _),) = world.decode(message(body="its names are not to be shown"))
    assert delivery.facts.task == "a\N{REPLACEMENT CHARACTER}b"
    assert delivery.facts.task_id == "i" * MAX_TEXT_CHARACTERS + "..."
