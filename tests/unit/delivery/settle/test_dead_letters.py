"""What a dead letter says, within what SQS takes."""

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTE, TEXTS, DeadLetters, described
from celery_sqs_visibility.policy.message_limits import message_bytes
from celery_sqs_visibility.policy.payload_pointers import size_attribute
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

FAILURE = {"exception": "ValueError: no", "traceback": "Traceback\n  a line\nValueError: no", "attempts": "4"}


class World:
    """A dead-letter queue, named for all queues."""

    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.target = factories.queue(self.sqs, "target")
        self.letters = DeadLetters(RedriveBook(lambda _: lambda: self.target), "worker@host")

    def send(self, delivery, body="body", reason="broken", **details):
        """A dead letter goes to its queue, and is received there."""
        forward = self.letters.forward(delivery, reason, body, lambda _: Hide(9), details)
        assert (forward.reason, forward.otherwise(None)) == (reason, Hide(9))
        target, (letter,) = self.letters.addressed(delivery.queue, forward.messages)
        assert target is self.target
        self.sqs.send(target.url, letter)

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
    attributes = message.get("MessageAttributes", {})
    assert attributes.keys() <= {ATTRIBUTE}
    return described(attributes)


WHOSE = {
    "task": "tasks.add",
    "task_id": "id",
    "worker": "worker@host",
    "first_received": "2023-11-14T22:13:20.500+00:00",
    "last_received": "2023-11-14T22:14:20.000+00:00",
    "source_queue": "q",
    "message_id": "m1",
    "receive_count": "4",
}


@pytest.mark.parametrize("failure", [FAILURE, {}], ids=["of a failed task", "of a message that is no task"])
def test_it_tells_what_happened_and_to_what(world, failure):
    world.send(world.delivery(), **failure)
    (message,) = world.read()
    assert message["Body"] == "body"
    assert texts(message) == {"reason": "broken", **WHOSE, **failure}


def test_nothing_in_it_is_what_sqs_would_refuse(world):
    failure = {**FAILURE, "exception": "\x00\ud800" * 9000, "traceback": "", "attempts": ""}
    world.send(world.delivery(), reason="\x1b" * 9000, **failure)
    sent = texts(world.read()[0])
    assert sent["exception"].startswith(r"\x00\ud800\x00")
    assert len(sent["reason"]) == 1000
    assert "traceback" not in sent


@pytest.mark.parametrize(
    ("spare", "last"),
    [(700, "traceback"), (400, "exception"), (150, "attempts"), (60, "reason"), (40, None)],
)
def test_a_large_body_leaves_room_for_the_first_texts(world, spare, last):
    failure = {**FAILURE, "traceback": "Traceback\n" * 20}
    body = "x" * (MESSAGE_BYTES - spare)
    world.send(world.delivery(), body, **failure)
    (message,) = world.read()
    assert message["Body"] == body
    expected = [] if last is None else list(TEXTS[: TEXTS.index(last) + 1])
    assert list(texts(message)) == expected


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
        world.send(one)
    assert [message["Attributes"]["MessageGroupId"] for message in world.read()] == [expected] * copies


TRACE = {"DataType": "String", "StringValue": "Root=1-5759e988"}
BYTES = {"DataType": "Binary.png", "BinaryValue": b"\x89PNG", "StringListValues": []}


@pytest.mark.parametrize(("number", "is_described"), [(0, True), (1, True), (9, True), (10, False)])
def test_it_keeps_its_senders_attributes_and_of_ten_gives_up_its_own(world, number, is_described):
    names = ["reason", "task", "attempts", *"abcdefg"][:number]
    one = world.delivery()
    one.message_attributes = {name: (TRACE, BYTES)[position % 2] for position, name in enumerate(names)}
    world.send(one, **FAILURE)
    sent = world.read()[0]["MessageAttributes"]
    told = {"reason": "broken", **WHOSE, **FAILURE} if is_described else {}
    assert described({ATTRIBUTE: sent.pop(ATTRIBUTE)} if is_described else sent) == told
    assert sent == {
        name: {key: value[key] for key in value if key != "StringListValues"}
        for name, value in one.message_attributes.items()
    }


@pytest.mark.parametrize(("grown", "kept"), [(0, ["large"]), (1, [])])
def test_the_senders_attributes_give_way_only_to_a_body_that_has_grown(world, grown, kept):
    one = world.delivery()
    one.message_attributes = {"large": {"DataType": "String", "StringValue": "x" * 300}}
    body = "x" * (MESSAGE_BYTES - message_bytes("", one.message_attributes) + grown)
    world.send(one, body, reason="r" * 500, **FAILURE)
    assert list(world.read()[0].get("MessageAttributes", {})) == kept


def test_what_was_moved_back_and_is_given_up_again_tells_the_latest(world):
    one = world.delivery()
    for reason in ("broken", "broken again"):
        one.message_attributes = {"tenant": TRACE, **one.message_attributes}
        world.send(one, reason=reason)
        message = world.read()[-1]
        one.message_attributes = message["MessageAttributes"]
        world.clock.advance(60)
    assert one.message_attributes.keys() == {"tenant", ATTRIBUTE}
    assert described(one.message_attributes)["reason"] == "broken again"


@pytest.mark.parametrize("text", ["", "x", "5", "[]", "[" * 9000, '{"reason": 5}', None], ids=repr)
def test_what_somebody_else_wrote_there_describes_nothing(text):
    value = {"BinaryValue": b"{}"} if text is None else {"StringValue": text}
    assert described({ATTRIBUTE: {"DataType": "String", **value}}) == {}


def test_the_attribute_that_marks_a_pointer_is_kept_first(world):
    one = world.delivery()
    one.message_attributes = {"a": TRACE, **size_attribute(7)}
    space = message_bytes("", size_attribute(7))
    world.send(one, "x" * (MESSAGE_BYTES - space))
    assert list(world.read()[0]["MessageAttributes"]) == ["ExtendedPayloadSize"]


def test_an_instant_that_sqs_did_not_tell_is_left_out(world):
    world.send(world.delivery(first_received=0))
    assert "first_received" not in texts(world.read()[0])


def test_of_a_long_traceback_its_last_lines_are_kept_and_of_other_texts_the_first(world):
    lines = [f"line {number}" for number in range(10_000)]
    text = "\n".join(lines)
    world.send(world.delivery(), "x", **{**FAILURE, "traceback": text, "exception": text})
    (message,) = world.read()
    sent = texts(message)
    assert sent["traceback"].endswith(lines[-1])
    assert sent["exception"].startswith(lines[0])
