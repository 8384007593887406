import base64
import json
import pickle
import zlib

import click
import pytest

from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.operate.dead_letters.letter import (
    Selection,
    grouped,
    grouping,
    letter_facts,
    read_letter,
    show_facts,
    show_groups,
    show_letters,
)
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads, pointer_body, size_attribute
from celery_sqs_visibility.transport.task_message import task_message


@pytest.mark.parametrize(
    ("filters", "is_taken"),
    [
        ({}, True),
        ({"task": "proj.*"}, True),
        ({"task": "other.*"}, False),
        ({"exception": "Trouble"}, True),
        ({"exception": "errors.Trouble"}, True),
        ({"exception": "*in vain*"}, True),
        ({"exception": "Troub"}, False),
        ({"older_than": 60}, True),
        ({"older_than": 61}, False),
        ({"newer_than": 61}, True),
        ({"newer_than": 60}, False),
        ({"sources": {"orders"}}, True),
        ({"sources": {"others"}}, False),
    ],
    ids=str,
)
def test_a_letter_passes_every_filter_that_is_given(site, filters, is_taken):
    site.add(exception="errors.Trouble: in vain")
    now = site.clock.wall() + 60
    assert Selection(**filters).matches(site.receive()[0], now) == is_taken


def test_an_id_is_the_messages_or_the_tasks_or_their_beginning(site):
    letter_id = site.add(task_id="task-0001-more", message_id="original-message")
    (letter,) = site.receive()
    for name in (letter_id, letter_id[:8], "task-0001-more", "task-000", "original"):
        assert Selection([name]).matches(letter, 0)
    assert not Selection(["task-0001"]).matches(letter, 0)


@pytest.mark.parametrize("attempts", ["²", "9" * 5000, "-1", "many"])
def test_a_number_of_attempts_that_is_none_is_left_out(site, attempts):
    site.add(attempts=attempts)
    assert site.receive()[0].summary(site.clock.wall())["attempts"] is None


def test_a_letter_of_an_unknown_queue_is_any_queues(site):
    site.add(source_queue="")
    assert Selection(sources={"others"}).matches(site.receive()[0], 0)


def test_a_message_that_cannot_be_read_is_listed_with_the_reason(site):
    site.add(body="no JSON", reason="")
    summary = site.receive()[0].summary(site.clock.wall() + 3)
    assert (summary["task"], summary["attempts"], summary["age_seconds"]) == (None, None, 3)
    assert "neither a JSON object" in summary["reason"]


def payload(**changes):
    return {**json.loads(task_message("proj.add", [1], {"x": 2})), **changes}


COMPRESSED = {
    "headers": {"task": "proj.add", "id": "a", "compression": "application/x-gzip"},
    "properties": {"body_encoding": "base64"},
    "body": base64.b64encode(zlib.compress(b'[[1], {"x": 2}, {}]')).decode(),
}


def facts_of(site, body, payloads=None, readable=None, attributes=None):
    site.sqs.send(site.letters, OutgoingMessage(body, attributes or {}))
    (received,) = next(site.held.batches())
    letter = read_letter(site.place.letters, received, readable or ReadablePayloads())
    return letter_facts(letter, site.place.letters, payloads, site.clock.wall())


@pytest.mark.parametrize(
    "body",
    [
        task_message("proj.add", [1], {"x": 2}),
        base64.b64encode(task_message("proj.add", [1], {"x": 2}).encode()).decode(),
        json.dumps(payload(body='{"task": "proj.add", "args": [1], "kwargs": {"x": 2}}')),
        json.dumps(payload(**COMPRESSED)),
    ],
    ids=["plain", "base64", "protocol 1", "compressed"],
)
def test_arguments_are_shown(site, body):
    facts = facts_of(site, body)
    assert (facts["args"], facts["kwargs"], facts["body"]) == ([1], {"x": 2}, body)


def test_a_payload_in_s3_is_fetched_or_the_reason_told(site):
    objects = FakeObjectStore()
    objects.put("k", task_message("proj.add", [1]).encode())
    pointer, readable = pointer_body("payloads", "k"), ReadablePayloads("payloads")
    facts = facts_of(site, pointer, PayloadStore(objects), readable, size_attribute(9))
    assert (facts["args"], facts["body"]) == ([1], pointer)
    gone = facts_of(site, pointer_body("payloads", "no"), PayloadStore(objects), readable, size_attribute(9))
    assert "s3://payloads/no is gone" in gone["unreadable"]


def test_a_payload_outside_the_prefix_is_not_fetched(site):
    objects = FakeObjectStore()
    objects.put("secrets/k", task_message("proj.add", ["secret"]).encode())
    readable = ReadablePayloads("payloads", "celery/")
    pointer = pointer_body("payloads", "secrets/k")
    facts = facts_of(site, pointer, PayloadStore(objects), readable, size_attribute(9))
    assert "payload_store is 's3://payloads/celery/'" in facts["unreadable"]
    assert "args" not in facts


def test_nothing_is_unpickled(site):
    body = base64.b64encode(pickle.dumps(([1], {}, {}))).decode()
    pickled = payload(body=body, **{"content-type": "application/x-python-serialize"})
    pickled["properties"]["body_encoding"] = "base64"
    facts = facts_of(site, json.dumps(pickled))
    assert "cannot be decoded here" in facts["unreadable"]
    assert facts["headers"]["task"] == "proj.add"


def test_a_table_and_a_whole_letter_are_printed(site, capsys):
    letter_id = site.add(exception="proj.Trouble: in\nvain", attempts="6", traceback="line 1\nline 2")
    (letter,) = site.receive()
    show_letters([letter.summary(site.clock.wall() + 7200)])
    table = capsys.readouterr().out.splitlines()
    assert table[1].split() == [
        letter_id[:8], "proj.add", "proj.Trouble:", "in", "vain", "failed", "6", "2h", "orders", "-",
    ]  # fmt: skip
    show_facts(letter_facts(letter, site.place.letters, None, site.clock.wall()))
    assert "traceback:\nline 1\nline 2\nargs: [1]\n" in capsys.readouterr().out


def summary(letter_id, exception, age, **others):
    facts = {"task": "proj.charge", "reason": "failed", "source_queue": "proj", "worker": None}
    return {"id": letter_id, "exception": exception, "age_seconds": age, **facts, **others}


SUMMARIES = [
    summary("a-long-id", "proj.Down: no route to 10.0.0.1", 90),
    summary("b-long-id", "ValueError: odd", 7200, task="proj.import_object"),
    summary("c-long-id", "proj.Down: no route to 10.0.0.2", 5),
    summary("d-long-id", None, 40),
]


def test_the_largest_group_is_first_and_an_exception_is_its_class():
    assert grouped(SUMMARIES, ("exception", "task")) == [
        {
            "exception": "proj.Down",
            "task": "proj.charge",
            "count": 2,
            "oldest_seconds": 90,
            "newest_seconds": 5,
            "example": "c-long-id",
        },
        {
            "exception": "ValueError",
            "task": "proj.import_object",
            "count": 1,
            "oldest_seconds": 7200,
            "newest_seconds": 7200,
            "example": "b-long-id",
        },
        {
            "exception": None,
            "task": "proj.charge",
            "count": 1,
            "oldest_seconds": 40,
            "newest_seconds": 40,
            "example": "d-long-id",
        },
    ]


@pytest.mark.parametrize(
    ("by", "counts"), [("task", [3, 1]), ("source_queue", [4]), ("worker,task", [3, 1])], ids=str
)
def test_groups_are_of_what_is_named(by, counts):
    assert [group["count"] for group in grouped(SUMMARIES, grouping(by))] == counts


def test_a_table_has_a_group_a_line(capsys):
    by = ("exception", "source_queue")
    show_groups(grouped(SUMMARIES, by), by)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "exception   source queue  count  oldest  newest  example",
        "proj.Down   proj              2  1m30s   5s      c-long-i",
    ]


def test_names_are_taken_once_and_with_spaces():
    assert grouping("task, exception,task") == ("task", "exception")
    with pytest.raises(click.BadParameter, match="got ''"):
        grouping("")
