import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.operate.dead_letters import moves
from celery_sqs_visibility.operate.dead_letters.letter import read_letter
from celery_sqs_visibility.operate.dead_letters.moves import batches_of, message_to_send_back, move_all
from celery_sqs_visibility.operate.invocation import ATTEMPTS, CommandError
from celery_sqs_visibility.policy.payload_pointers import (
    PayloadPointer,
    ReadablePayloads,
    pointer_body,
    size_attribute,
)
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES
from celery_sqs_visibility.transport.task_message import task_message


def actions(site):
    return [name for name, _ in site.sqs.calls if name.startswith(("Send", "Delete"))]


def test_letters_are_sent_in_batches_and_then_deleted(site):
    ids = {site.add(mine="kept", exception="E", worker="w") for _ in range(12)}
    site.sqs.calls.clear()
    site.moves.send_back(site.receive())
    assert actions(site) == ["SendMessageBatch", "DeleteMessageBatch"] * 2
    assert (set(site.moves.outcome.done), site.moves.outcome.failed) == (ids, {})
    assert len(site.held) == 0
    back = site.messages(site.queue)[0]
    assert (back["Body"][:1], list(back["MessageAttributes"])) == ("{", ["mine"])


def test_what_could_not_be_sent_stays(site):
    ids = [site.add() for _ in range(3)]
    letters = site.receive()
    site.sqs.fail_next("SendMessageBatch", RequestRefusedError("too odd"), 1)
    site.moves.send_back(letters)
    assert site.moves.outcome.failed == {letters[1].id: "too odd"}
    site.held.release()
    assert [each["MessageId"] for each in site.messages(site.letters)] == [letters[1].id]
    assert letters[1].id in ids


def test_nothing_is_deleted_after_a_send_without_an_answer(site):
    site.add()
    site.sqs.fail_next("SendMessageBatch", UnavailableError("no answer"))
    with pytest.raises(UnavailableError):
        site.moves.send_back(site.receive())
    assert len(site.held) == 1


def test_a_throttled_request_is_made_again_and_so_is_a_delete_without_an_answer(site):
    letter_id = site.add()
    for action in ("ReceiveMessage", "SendMessageBatch", "DeleteMessageBatch"):
        site.sqs.fail_next(action, ThrottledError("slow down"))
    site.sqs.fail_next("DeleteMessageBatch", UnavailableError("no answer"))
    site.moves.send_back(site.receive())
    assert (site.moves.outcome.done, site.moves.outcome.failed) == ([letter_id], {})
    assert (len(site.messages(site.queue)), site.messages(site.letters)) == (1, [])


@pytest.mark.parametrize("position", [0, None])
def test_who_is_twice_is_told(site, position):
    letter_id = site.add()
    for _ in range(1 if position == 0 else ATTEMPTS):
        site.sqs.fail_next("DeleteMessageBatch", UnavailableError("no answer"), position)
    try:
        site.moves.send_back(site.receive())
    except UnavailableError:
        assert position is None
    assert site.moves.outcome.done == [letter_id]
    assert "still a dead letter" in site.moves.outcome.failed[letter_id]


def test_a_fifo_letter_keeps_its_group_and_is_not_swallowed(make_site):
    site = make_site(".fifo")
    site.add("proj.first", group="a")
    (letter,) = site.receive()
    messages = [message_to_send_back(letter, fifo=True) for _ in range(2)]
    assert {each.group_id for each in messages} == {"a"}
    assert len({each.deduplication_id for each in messages}) == 2
    site.moves.send_back([letter])
    assert len(site.messages(site.queue)) == 1


def test_a_fifo_group_keeps_its_order_where_a_letter_cannot_be_sent(make_site):
    site = make_site(".fifo")
    first, second = (site.add(f"proj.{name}", group="a") for name in ("first", "second"))
    site.add("proj.other", group="b")
    site.sqs.fail_next("SendMessageBatch", RequestRefusedError("too odd"), 0)
    site.moves.send_back(site.receive())
    assert set(site.moves.outcome.failed) == {first, second}
    assert "an earlier dead letter of its message group" in site.moves.outcome.failed[second]
    assert len(site.messages(site.queue)) == 1


def test_attempts_begin_anew(site):
    payload = json.loads(task_message("proj.add", [1]))
    payload["headers"]["retries"] = 4
    site.add(body=json.dumps(payload))
    site.moves.send_back(site.receive())
    (back,) = site.messages(site.queue)
    content = read_letter(site.place.source, back, ReadablePayloads()).content
    assert content.payload["headers"]["retries"] == 0
    assert content.payload["body"] == payload["body"]


@pytest.mark.parametrize("name", ["gone", "q" * 100, "", "a b", "ü", "arn:aws:sqs:x", "x.fifo.fifo"])
def test_a_letter_that_names_no_queue_that_there_is_stays_and_stops_no_other(site, name):
    bad = site.add(source_queue=name or " ")
    good = site.add()
    letters = site.receive()
    site.moves.send_back(letters)
    assert site.moves.outcome.failed.keys() == {bad}
    assert site.moves.outcome.done == [good]


def test_a_letter_that_sqs_has_moved_keeps_all_its_attributes_and_finds_its_queue(site):
    attributes = {"reason": {"DataType": "String", "StringValue": "the sender's own"}}
    site.sqs.send(site.queue, OutgoingMessage(task_message("proj.add"), attributes))
    for _ in range(6):
        site.messages(site.queue)
    (letter,) = site.receive()
    assert (letter.details, letter.source) == ({}, "orders")
    assert "maxReceiveCount" in letter.reason
    site.moves.send_back([letter])
    assert site.messages(site.queue)[0]["MessageAttributes"] == attributes


@pytest.mark.parametrize(
    ("problem", "is_sent"), [(None, True), ("missing", False), (AccessDeniedError("no right"), True)]
)
def test_a_payload_that_is_gone_is_not_sent_for(site, problem, is_sent):
    objects = FakeObjectStore()
    site.moves.payloads = PayloadStore(objects)
    if problem != "missing":
        objects.put("k", b"payload")
    if isinstance(problem, Exception):
        objects.fail_next("GetObject", problem)
    site.sqs.send(site.letters, OutgoingMessage(pointer_body("payloads", "k"), size_attribute(9)))
    (received,) = next(site.held.batches())
    letter = read_letter(site.place.letters, received, ReadablePayloads("payloads"))
    assert isinstance(letter.content, PayloadPointer)
    site.moves.send_back([letter])
    assert bool(site.moves.outcome.done) == is_sent
    if not is_sent:
        assert "s3://payloads/k is gone" in site.moves.outcome.failed[letter.id]


def test_a_rate_waits_between_batches_and_an_interruption_ends_it(site):
    for _ in range(9):
        site.add()
    letters = site.receive()
    site.moves.per_second = 4.0
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            site.stop.set()

    site.held.wait = wait
    site.moves.send_back(letters)
    assert (waited, len(site.moves.outcome.done), len(site.held)) == ([1.0, 1.0], 8, 1)


@given(st.lists(st.integers(1, MESSAGE_BYTES)), st.integers(1, 10))
def test_batches_are_in_order_and_within_sqs_limits(sizes, most):
    messages = [OutgoingMessage("x" * size) for size in sizes]
    batches = list(batches_of(messages, most))
    assert [position for batch in batches for position in batch] == list(range(len(sizes)))
    assert all(len(batch) <= most for batch in batches)
    assert all(sum(sizes[p] for p in batch) <= MESSAGE_BYTES for batch in batches)


def test_each_other_queue_is_asked_about_once_and_the_own_one_never(site):
    _, b = (site.sqs.create_queue(name, {}, {}) for name in ("a", "b"))
    refused = [site.add(source_queue="a") for _ in range(2)]
    site.add(source_queue="b")
    site.add()
    site.add(source_queue="")
    asked = []
    site.moves.agrees = lambda target: asked.append(target.name) or target.name == "b"
    site.moves.send_back(site.receive())
    assert sorted(asked) == ["a", "b"]
    assert site.moves.outcome.sent_to == {"orders": 2, "b": 1}
    assert len(site.messages(b)) == 1
    assert site.moves.outcome.failed.keys() == set(refused)


SENDERS = {
    name: {"DataType": "String", "StringValue": f"the sender's {name}"}
    for name in ("task", "reason", "attempts", "worker", "source_queue", "kind", "picture", "a", "b", "c")
}
SENDERS["picture"] = {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"}


@pytest.mark.parametrize("number", [0, 6, 9, 10])
def test_the_senders_attributes_survive_the_way_into_a_dead_letter_and_back(site, number):
    senders = dict(list(SENDERS.items())[:number])
    site.sqs.send(site.queue, OutgoingMessage(task_message("proj.add"), senders))
    for times in (1, 2):
        (message,) = site.messages(site.queue)
        assert message.get("MessageAttributes", {}) == senders
        site.give_up(message)
        (letter,) = site.receive()
        site.moves.send_back([letter])
        assert site.moves.outcome.failed == {}
        assert len(site.moves.outcome.done) == times
    assert site.messages(site.queue)[0].get("MessageAttributes", {}) == senders


@pytest.mark.parametrize(("late_looks", "moved"), [(3, 2), (99, None)])
def test_a_task_that_ended_before_is_not_taken_for_the_one_that_begins(site, monkeypatch, late_looks, moved):
    site.add()
    move_all(site.place, None)
    site.clock.advance(1)
    for _ in range(2):
        site.add()
    latest = site.sqs.latest_move_task
    former = latest(site.place.letters.arn())
    looks = iter(range(late_looks))

    def look(arn):
        return latest(arn) if next(looks, None) is None else former

    monkeypatch.setattr(site.sqs, "latest_move_task", look)
    monkeypatch.setattr(moves, "LOOK_SECONDS", 0)
    if moved:
        assert move_all(site.place, None)["moved"] == moved
    else:
        with pytest.raises(CommandError, match="does not list the task"):
            move_all(site.place, None)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            MoveTask("FAILED", 1, 2, failure="AccessDenied"),
            "moved 1 message, and then: FAILED, AccessDenied",
        ),
        (MoveTask("CANCELLED", 2, 3), "SQS moved 2 messages, and then: CANCELLED, no reason given"),
        (KeyboardInterrupt(), "SQS goes on moving the messages; this command no longer watches it"),
    ],
    ids=["it fails", "somebody cancels it", "Ctrl-C"],
)
def test_a_move_that_is_not_seen_to_its_end_is_told(site, monkeypatch, end, sentence):
    looks = iter([None, UnavailableError("gone"), MoveTask("RUNNING"), end])

    def look(_arn):
        seen = next(looks)
        if isinstance(seen, BaseException):
            raise seen
        return seen

    monkeypatch.setattr(site.sqs, "latest_move_task", look)
    monkeypatch.setattr(moves, "LOOK_SECONDS", 0)
    with pytest.raises(CommandError, match=sentence):
        move_all(site.place, None)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (UnavailableError("answered 500: <html>", code="500"), CommandError),
        (RequestRefusedError("answered InvalidAction: no", code="InvalidAction"), CommandError),
        (UnavailableError("answered InternalError", code="InternalError"), UnavailableError),
    ],
)
def test_an_endpoint_without_move_tasks_is_told(site, monkeypatch, error, raised):
    def start_move_task(*_):
        raise error

    monkeypatch.setattr(site.sqs, "start_move_task", start_move_task)
    with pytest.raises(raised) as caught:
        move_all(site.place, None)
    assert ("leave out --native" in str(caught.value)) is (raised is CommandError)
