"""What a dead letter says, within what SQS takes."""

from __future__ import annotations

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.delivery.settlements import DeadLetter, Hide
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError
from celery_sqs_visibility.policy.payload_pointers import size_attribute
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

FAILURE = {"exception": "ValueError: no", "traceback": "Traceback\n  a line\nValueError: no", "attempts": "4"}


class World:
    """A dead-letter queue, named for all queues."""

    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.target = factories.queue(self.sqs, "target")
        self.letters = DeadLetters(
            RedriveBook(lambda _: lambda: self.target), CopyPermissions(self.clock), self.clock, "worker@host"
        )

    def delivery(self, name="q", **facts):
        sent = {"first_received": 1_700_000_000.5, "received": 1_700_000_060, "receive_count": 4, **facts}
        queue = self.target if name == "target" else factories.queue(self.sqs, name)
        return factories.delivery(queue, task="tasks.add", task_id="id", **sent)

    def read(self):
        return self.sqs.receive(self.target.url, 10, 0, factories.EVERYTHING)


@pytest.fixture
def world():
    return World()


def texts(message):
    return {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}


def letter(body="body", reason="broken", **attributes):
    return DeadLetter(reason, body, Hide(9), attributes)


WHOSE = {
    "task": "tasks.add",
    "task_id": "id",
    "worker": "worker@host",
    "first_received": "2023-11-14T22:13:20.500+00:00",
    "last_received": "2023-11-14T22:14:20.000+00:00",
    "source_queue": "q",
}


@pytest.mark.parametrize(
    ("failure", "told"),
    [(FAILURE, FAILURE), ({}, {"message_id": "m1", "receive_count": "4"})],
    ids=["of a failed task ten things", "of a message that is no task which it is"],
)
def test_it_tells_what_happened_and_to_what(world, failure, told):
    assert world.letters.send(world.delivery(), letter(**failure))
    (message,) = world.read()
    assert message["Body"] == "body"
    assert texts(message) == {"reason": "broken", **WHOSE, **told}


def test_none_is_sent_of_a_message_that_is_lost_while_sqs_is_asked_whether_it_can_be_deleted(world):
    delivery = world.delivery()
    world.sqs.delete = lambda *_: world.clock.advance(delivery.deadline - world.clock.monotonic())
    with pytest.raises(ReceiptHandleInvalidError, match="ran out"):
        world.letters.send(delivery, letter())
    assert world.read() == []


def test_nothing_in_it_is_what_sqs_would_refuse(world):
    failure = {**FAILURE, "exception": "\x00\ud800" * 9000, "traceback": "", "attempts": ""}
    assert world.letters.send(world.delivery(), letter(reason="\x1b" * 9000, **failure))
    sent = texts(world.read()[0])
    assert sent["exception"].startswith(r"\x00\ud800\x00")
    assert len(sent["reason"]) == 1000
    assert "traceback" not in sent


@pytest.mark.parametrize(("spare", "count"), [(600, 10), (290, 9), (100, 5), (0, 0)])
def test_a_large_body_leaves_room_for_some_of_it(world, spare, count):
    failure = {**FAILURE, "traceback": "Traceback\n" * 20}
    body = "x" * (MESSAGE_BYTES - spare)
    assert world.letters.send(world.delivery(), letter(body, **failure))
    (message,) = world.read()
    assert message["Body"] == body
    assert len(message.get("MessageAttributes", {})) == count


@pytest.mark.parametrize(
    ("suffix", "group", "expected", "copies"),
    [
        (".fifo", "mine", "mine", 1),
        (".fifo", None, "dead-letters", 1),
        ("", "tenant-7", "tenant-7", 2),  # since queues are fair by group
    ],
)
def test_it_keeps_its_group_and_in_a_fifo_queue_it_is_one_only(world, suffix, group, expected, copies):
    world.target = factories.queue(world.sqs, f"target{suffix}")
    one = world.delivery(f"q{suffix}", group=group)
    for _ in range(2):
        assert world.letters.send(one, letter())
    assert [message["Attributes"]["MessageGroupId"] for message in world.read()] == [expected] * copies


TRACE = {"DataType": "String", "StringValue": "Root=1-5759e988"}
BYTES = {"DataType": "Binary.png", "BinaryValue": b"\x89PNG", "StringListValues": []}
OURS = ["reason", "exception", "traceback", "attempts", "task", "task_id", "worker", "first_received"]


@pytest.mark.parametrize(
    ("theirs", "kept", "ours"),
    [
        ({"trace": TRACE, "picture": BYTES}, ["trace", "picture"], OURS),
        ({f"a{number}": TRACE for number in range(10)}, [f"a{number}" for number in range(9)], ["reason"]),
    ],
    ids=["ours take what is left", "one gives way to the reason"],
)
def test_it_keeps_its_senders_attributes(world, theirs, kept, ours):
    one = world.delivery()
    one.message_attributes = theirs
    assert world.letters.send(one, letter(**FAILURE))
    sent = world.read()[0]["MessageAttributes"]
    assert list(sent) == [*kept, *ours]
    for name in kept:
        assert sent[name] == {key: theirs[name][key] for key in theirs[name] if key != "StringListValues"}


def test_where_there_is_room_for_little_it_is_for_the_reason(world):
    one = world.delivery()
    one.message_attributes = {"large": {"DataType": "String", "StringValue": "x" * 300}}
    assert world.letters.send(one, letter("x" * (MESSAGE_BYTES - 320), reason="r" * 200, **FAILURE))
    sent = texts(world.read()[0])
    assert sent["reason"] == "r" * 200
    assert "large" not in sent


def test_what_was_moved_back_and_is_given_up_again_tells_the_latest(world):
    one = world.delivery()
    one.message_attributes = {"reason": TRACE, "attempts": TRACE, "tenant": TRACE}
    assert world.letters.send(one, letter(reason="broken again", attempts="2"))
    sent = texts(world.read()[0])
    assert (sent["reason"], sent["attempts"], sent["tenant"]) == ("broken again", "2", TRACE["StringValue"])


def test_a_refusal_is_logged_once_until_it_is_over(world, caplog):
    one = world.delivery()
    for denials in (2, 1):
        for _ in range(denials):
            world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
            assert not world.letters.send(one, letter())
        assert world.letters.send(one, letter())
    assert caplog.text.count("cannot send to the dead-letter queue of 'q'") == 2


def test_a_queue_is_no_dead_letter_queue_of_its_own(world):
    assert not world.letters.send(world.delivery("target"), letter())
    assert world.read() == []


def test_the_attribute_that_marks_a_pointer_is_kept_first(world):
    delivery = world.delivery()
    sent = {str(number): {"DataType": "String", "StringValue": "x"} for number in range(9)}
    delivery.message_attributes = {**sent, **size_attribute(7)}
    assert world.letters.send(delivery, letter())
    (message,) = world.read()
    assert {"ExtendedPayloadSize", "reason"} <= message["MessageAttributes"].keys()


def test_none_is_sent_of_a_message_that_nobody_may_delete(world):
    world.sqs.fail_next(factories.DELETES, AccessDeniedError("no"))
    assert not world.letters.send(world.delivery(), letter())
    assert world.read() == []


def test_an_instant_that_sqs_did_not_tell_is_left_out(world):
    assert world.letters.send(world.delivery(first_received=0), letter())
    assert "first_received" not in texts(world.read()[0])


def test_of_a_long_traceback_its_last_lines_are_kept_and_of_other_texts_the_first(world):
    lines = [f"line {number}" for number in range(10_000)]
    text = "\n".join(lines)
    assert world.letters.send(
        world.delivery(), letter("x", **{**FAILURE, "traceback": text, "exception": text})
    )
    (message,) = world.read()
    sent = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert sent["traceback"].endswith(lines[-1])
    assert sent["exception"].startswith(lines[0])
