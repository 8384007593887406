"""What a dead letter says, and what becomes of a message that has nowhere to go."""

from __future__ import annotations

import json

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Hide, Lapse, Release
from celery_sqs_visibility.delivery.settle.dead_letters import (
    KEPT,
    DeadLetters,
    not_taken,
    without_dead_letters,
)
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

EVERYTHING = ReceiveOptions(system_attributes=("All",), message_attributes=("All",))
FAILURE = {"exception": "ValueError: no", "traceback": "Traceback\n  a line\nValueError: no", "attempts": "4"}


class World:
    """A dead-letter queue, and queues that have it."""

    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.graves = self.queue("graves")
        self.redrive = RedriveBook(lambda: self.graves)
        self.letters = DeadLetters(self.redrive, "worker@host")

    def queue(self, name, **attributes):
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return Queue(name, self.sqs.create_queue(name, {**attributes, **fifo}, {}), self.sqs)

    def mortal(self, max_receive_count, name="mortal"):
        arn = self.sqs.queue_attributes(self.graves.url, ["QueueArn"])["QueueArn"]
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": max_receive_count}
        queue = self.queue(name, RedrivePolicy=json.dumps(policy))
        self.redrive.get(queue, 0)
        return queue

    def delivery(self, queue, receive_count=4, number=1, **facts):
        told = Facts(
            queue.name,
            f"message-{number}",
            receive_count,
            1_700_000_000.5,
            "tasks.add",
            "id",
            received=1_700_000_060,
            **facts,
        )
        now = self.clock.monotonic()
        return Delivery(queue, f"handle-{number}", told, now, now + 120, lambda _d, _s: True)

    def read(self):
        return self.sqs.receive(self.graves.url, 10, 0, EVERYTHING)


@pytest.fixture
def world():
    return World()


def texts(message):
    return {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}


def letter(body="body", reason="broken", **attributes):
    return DeadLetter(reason, body, Hide(9), attributes)


def test_of_a_failed_task_it_tells_ten_things(world):
    one = world.delivery(world.queue("q"))
    assert world.letters.send(one, letter(**FAILURE))
    (message,) = world.read()
    assert message["Body"] == "body"
    assert texts(message) == {
        "reason": "broken",
        **FAILURE,
        "task": "tasks.add",
        "task_id": "id",
        "worker": "worker@host",
        "first_received": "2023-11-14T22:13:20.500+00:00",
        "last_received": "2023-11-14T22:14:20.000+00:00",
        "source_queue": "q",
    }


def test_of_a_message_that_is_no_task_it_tells_which_it_is(world):
    world.letters.send(world.delivery(world.queue("q")), letter())
    assert texts(world.read()[0]).keys() == {
        "reason",
        "task",
        "task_id",
        "worker",
        "first_received",
        "last_received",
        "source_queue",
        "message_id",
        "receive_count",
    }


def test_nothing_in_it_is_what_sqs_would_refuse(world):
    failure = {**FAILURE, "exception": "\x00\ud800" * 9000, "traceback": "", "attempts": ""}
    assert world.letters.send(world.delivery(world.queue("q")), letter(reason="\x1b" * 9000, **failure))
    told = texts(world.read()[0])
    assert told["exception"].startswith(r"\x00\ud800\x00")
    assert len(told["reason"]) == 1000
    assert "traceback" not in told


@pytest.mark.parametrize(("spare", "count"), [(600, 10), (290, 9), (100, 5), (0, 0)])
def test_a_large_body_leaves_room_for_some_of_it(world, spare, count):
    failure = {**FAILURE, "traceback": "Traceback\n" * 20}
    body = "x" * (MESSAGE_BYTES - spare)
    assert world.letters.send(world.delivery(world.queue("q")), letter(body, **failure))
    (message,) = world.read()
    assert message["Body"] == body
    assert len(message.get("MessageAttributes", {})) == count


@pytest.mark.parametrize(("group", "expected"), [("mine", "mine"), (None, "dead-letters")])
def test_in_a_fifo_queue_it_keeps_its_group_and_is_one_only(world, group, expected):
    world.graves = world.queue("graves.fifo")
    one = world.delivery(world.queue("q.fifo"), group=group)
    assert world.letters.send(one, letter())
    assert world.letters.send(one, letter())
    (message,) = world.read()
    assert message["Attributes"]["MessageGroupId"] == expected


def test_in_a_plain_queue_too_since_queues_are_fair_by_group(world):
    assert world.letters.send(world.delivery(world.queue("q"), group="tenant 7"), letter())
    (message,) = world.read()
    assert message["Attributes"]["MessageGroupId"] == "tenant 7"


TRACE = {"DataType": "String", "StringValue": "Root=1-5759e988"}
BYTES = {"DataType": "Binary.png", "BinaryValue": b"\x89PNG", "StringListValues": []}


def test_it_keeps_its_senders_attributes_and_ours_take_what_is_left(world):
    one = world.delivery(world.queue("q"))
    one.message_attributes = {"trace": TRACE, "picture": BYTES}
    assert world.letters.send(one, letter(**FAILURE))
    told = world.read()[0]["MessageAttributes"]
    assert told.pop("trace") == TRACE
    assert told.pop("picture") == {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"}
    ours = ["reason", "exception", "traceback", "attempts", "task", "task_id", "worker", "first_received"]
    assert list(told) == ours


def test_of_ten_attributes_of_its_sender_one_gives_way_to_the_reason(world):
    one = world.delivery(world.queue("q"))
    one.message_attributes = {f"a{number}": TRACE for number in range(10)}
    assert world.letters.send(one, letter(**FAILURE))
    assert list(world.read()[0]["MessageAttributes"]) == [*(f"a{n}" for n in range(9)), "reason"]


def test_where_there_is_room_for_little_it_is_for_the_reason(world):
    one = world.delivery(world.queue("q"))
    one.message_attributes = {"large": {"DataType": "String", "StringValue": "x" * 300}}
    assert world.letters.send(one, letter("x" * (MESSAGE_BYTES - 320), reason="r" * 200, **FAILURE))
    told = texts(world.read()[0])
    assert told["reason"] == "r" * 200
    assert "large" not in told


def test_what_was_moved_back_and_is_given_up_again_tells_the_latest(world):
    one = world.delivery(world.queue("q"))
    one.message_attributes = {"reason": TRACE, "attempts": TRACE, "tenant": TRACE}
    assert world.letters.send(one, letter(reason="broken again", attempts="2"))
    told = texts(world.read()[0])
    assert (told["reason"], told["attempts"], told["tenant"]) == ("broken again", "2", TRACE["StringValue"])


def test_trouble_is_told_once_until_it_is_over(world, caplog):
    one = world.delivery(world.queue("q"))
    for denials in (2, 1):
        for _ in range(denials):
            world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
            assert not world.letters.send(one, letter())
        assert world.letters.send(one, letter())
    assert caplog.text.count("cannot send to the dead-letter queue of 'q'") == 2


def test_a_queue_is_no_dead_letter_queue_of_its_own(world):
    assert not world.letters.send(world.delivery(world.graves), letter())
    assert world.read() == []


def test_without_dead_letters_it_is_deleted_or_kept(world):
    queue = world.queue("q")
    # There may be a redrive policy that we cannot see: let it count.
    assert without_dead_letters(world.redrive, queue, "delete") == Lapse()
    assert without_dead_letters(world.redrive, queue, "keep") == Lapse()
    world.redrive.get(queue, 0)
    assert without_dead_letters(world.redrive, queue, "delete") == Delete()
    assert without_dead_letters(world.redrive, queue, "keep") == Hide(KEPT)


def test_what_is_not_taken_is_left_to_the_policy_as_often_as_that_counts(world):
    queue = world.mortal(5)
    assert not_taken(world.redrive, world.delivery(queue, 4)) == Release()
    assert not_taken(world.redrive, world.delivery(queue, 5)) == Release()
    # SQS should have moved it, and could not; it must not spin.
    assert not_taken(world.redrive, world.delivery(queue, 6)) == Hide(KEPT)


def test_what_a_plain_queue_does_not_take_is_kept(world):
    queue = world.queue("q")
    assert not_taken(world.redrive, world.delivery(queue)) == Lapse()
    world.redrive.get(queue, 0)
    assert not_taken(world.redrive, world.delivery(queue)) == Hide(KEPT)
