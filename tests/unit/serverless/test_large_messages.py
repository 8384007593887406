"""A function fetches payloads from S3; they stay there, since Lambda deletes the messages afterwards."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from support import factories
from support.aws_events import s3_notification, s3_record
from support.factories import EVERYTHING
from support.lambda_function import CHANGES

from celery_sqs_visibility import task_message
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.policy.payload_pointers import pointer_body, size_attribute

DENIED = AccessDeniedError("AccessDenied")
DOWN = UnavailableError("no answer from S3")


@pytest.fixture
def world(make):
    return make(options={"payload_store": "s3://payloads"})


def send(world, key, body=None):
    """Put a message whose payload is the S3 object of that key."""
    world.payloads.objects[key] = (body or task_message("note", [key], task_id=key)).encode()
    world.queue.sqs.send(world.queue.url, OutgoingMessage(pointer_body("payloads", key), size_attribute(7)))


def dead_letter(world):
    (letter,) = world.sqs.receive(world.dead.url, 10, 0, EVERYTHING)
    return letter["Body"], described(letter["MessageAttributes"])["reason"]


def test_a_payload_is_fetched_and_runs_and_stays(world):
    send(world, "a")
    assert world.invoke() == []
    assert [key for key, *_ in world.ran] == ["a"]
    assert list(world.payloads.objects) == ["a"]


def test_a_failed_run_is_hidden_and_its_last_one_is_a_dead_letter_with_the_pointer(world):
    handler = world.handler()
    send(world, "bad")
    assert world.invoke(handler) == ["bad"]
    assert world.changes() == [10]
    world.clock.advance(10)
    assert world.invoke(handler) == []
    assert dead_letter(world) == (pointer_body("payloads", "bad"), "failed at its last attempt")
    assert list(world.payloads.objects) == ["bad"]


@pytest.mark.parametrize("error", [DENIED, DOWN])
def test_what_s3_does_not_give_is_reported_and_comes_back(make, caplog, error):
    caplog.set_level(logging.WARNING)
    world = make(options={"payload_store": "s3://payloads", "error_visibility_timeout": 20})
    send(world, "a")
    world.payloads.fail_next("GetObject", error)
    assert world.invoke() == ["a"]
    assert world.changes() == [20]
    assert "a payload could not be fetched from S3, so its message comes back (queue=q" in caplog.text
    assert f"payload=s3://payloads/a error={error})" in caplog.text
    world.clock.advance(20)
    assert world.invoke() == []


def test_at_the_last_receive_it_is_hidden_for_an_hour_and_no_dead_letter(make):
    world = make(options={"payload_store": "s3://payloads"}, most=1)
    send(world, "a")
    world.payloads.fail_next("GetObject", DOWN)
    assert world.invoke() == ["a"]
    assert world.changes() == [3600]
    assert world.letters() == []


def test_a_payload_that_is_gone_is_a_dead_letter(world):
    send(world, "a")
    del world.payloads.objects["a"]
    assert world.invoke() == []
    body, reason = dead_letter(world)
    assert body == pointer_body("payloads", "a")
    assert reason.startswith("its payload s3://payloads/a is gone")


def test_a_large_message_with_a_far_eta_waits_with_its_pointer(world):
    far = json.loads(task_message("note", ["a"], task_id="a"))
    far["headers"]["eta"] = "2033-05-18T03:33:20+00:00"
    send(world, "a", json.dumps(far))
    assert world.invoke() == ["a"]
    assert (world.ran, len(factories.requests(world.sqs, CHANGES))) == ([], 1)


def test_a_large_event_of_several_records_is_split(world):
    send(world, "e", json.dumps(s3_notification(s3_record(), s3_record())))
    world.app.tasks["note"].run = lambda record: world.ran.append(record["eventName"])
    assert world.invoke() == []
    assert world.invoke() == []
    assert world.ran == ["ObjectCreated:Put"] * 2


def test_without_a_bucket_a_pointer_is_a_dead_letter_that_says_so(make):
    world = make()
    send(world, "a")
    assert world.invoke() == []
    assert "set payload_store to 's3://payloads'" in dead_letter(world)[1]


def test_a_payload_that_comes_when_the_invocation_is_nearly_over_is_not_run(world, monkeypatch, caplog):
    get = world.payloads.get

    def slow(key, most, progress):
        world.clock.advance(59.5)
        return get(key, most, progress)

    send(world, "a")
    monkeypatch.setattr(world.payloads, "get", slow)
    assert world.invoke(seconds=60) == ["a"]
    assert world.ran == []
    assert "error=GetObject did not end before the invocation)" in caplog.text


def test_a_silent_s3_does_not_outlast_the_function_and_the_message_is_hidden(make, monkeypatch, caplog):
    world = make(options={"payload_store": "s3://payloads", "error_visibility_timeout": 20})
    over = threading.Event()
    send(world, "a")
    monkeypatch.setattr(world.payloads, "get", lambda *_: over.wait(10) and b"")
    assert world.invoke(seconds=1.1) == ["a"]
    assert not over.is_set()
    over.set()
    assert world.changes() == [20]
    assert "error=no time was left before Lambda's timeout)" in caplog.text
