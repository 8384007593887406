"""`task_message()`: what others send is a task to both transports."""

import base64
import json
from types import SimpleNamespace

import pytest
from celery import Celery
from support.factories import sqs_queue

from celery_sqs_visibility import task_id_for, task_message
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.validation import validate

CHANNEL = SimpleNamespace(
    decode_body=lambda body, encoding: base64.b64decode(body) if encoding == "base64" else body,
)


def received(body):
    return {"MessageId": "m", "ReceiptHandle": "h", "Body": body, "Attributes": {}}


def test_ids_are_fresh_unless_given():
    first, second = (json.loads(task_message("proj.add"))["headers"]["id"] for _ in range(2))
    assert first != second
    assert json.loads(task_message("proj.add", task_id="mine"))["headers"]["root_id"] == "mine"


def test_it_takes_a_task_for_its_name():
    app = Celery("message", set_as_current=False)
    task = app.task(task_id_for, name="proj.add")
    assert json.loads(task_message(task))["headers"]["task"] == "proj.add"
    app.close()


def test_arguments_must_be_json():
    with pytest.raises(TypeError):
        task_message("proj.add", [object()])


def test_the_task_id_of_a_message_is_always_the_same():
    ids = [task_id_for("m"), task_id_for("m", 0), task_id_for("m", 1), task_id_for("n")]
    assert len(set(ids)) == len(ids)
    assert task_id_for("m") == ids[0] == "d368082a-0c01-5424-b832-4d46a8a3d39e"


def test_the_least_that_others_have_to_send_is_a_task():
    """docs/aws-events.md, for Step Functions."""
    least = {
        "headers": {"task": "proj.add", "id": "id"},
        "body": "[[1], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {},
    }
    kombus = Message(decode_message(sqs_queue(), received(json.dumps(least))).payload, CHANNEL)
    validate(kombus, {"proj.add": None})
    assert kombus.payload == [[1], {}, {}]
