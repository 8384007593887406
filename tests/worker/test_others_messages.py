"""Messages that a stock client or somebody's own program has put into the queue: run, or refused by name."""

from __future__ import annotations

import base64
import json

import pytest
from celery import Celery
from support.badmessages import body_of, encoded, envelope, old_body
from support.processes import wait_until

from celery_sqs_visibility.delivery.settle.dead_letters import described


def of_a_stock_client(**options):
    """What Celery sends by another transport, in kombu's format for SQS."""
    with Celery(broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        app.send_task("work.quick", ["stock"], connection=connection, queue="stock", **options)
        payload = connection.default_channel._get("stock")
    return base64.b64encode(json.dumps(payload).encode()).decode()


#: A body, a part of the reason of its dead letter, and the task that is named there.
REFUSED = {
    "an ETA in the year 9999": (
        encoded(envelope(body_of(), headers={"eta": "9999-12-31T00:00:00+00:00"})),
        "its ETA, 9999-12-31T00:00:00+00:00, is ",
        None,
    ),
    "protocol 1, an ETA in the year 9999": (
        encoded(envelope(old_body(eta="9999-12-31T00:00:00"), protocol=1)),
        "its ETA, 9999-12-31T00:00:00, is ",
        None,
    ),
    "protocol 1, an unknown task": (
        encoded(envelope(old_body(task="no.such"), protocol=1)),
        "task 'no.such' is not registered",
        "no.such",
    ),
    "an id with a newline": (
        of_a_stock_client(task_id="order\n5"),
        r"'id' should be text without control characters, and is 'order\n5'",
        "work.quick",
    ),
    "an id with a tab": (
        of_a_stock_client(task_id="order\t5"),
        r"'id' should be text without control characters, and is 'order\t5'",
        "work.quick",
    ),
    "an id that is a number": (
        of_a_stock_client(task_id=7),
        "'id' should be text without control characters, and is 7",
        "work.quick",
    ),
}


def letters(site, url):
    """Reasons and tasks of the dead letters, by message id."""
    found = {}
    while answer := site.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    ).get("Messages"):
        for letter in answer:
            said = described(letter["MessageAttributes"])
            found[said["message_id"]] = (said["reason"], said.get("task"))
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_is_wrong_is_named_in_dead_letter_and_log_and_stops_nothing(make_site, pool):
    site = make_site(error_visibility_timeout=1, wait_time_seconds=2)
    dead_url = site.create_queue_with_dead_letters(receives=2)
    ids = {
        site.sqs.send_message(QueueUrl=site.url, MessageBody=body)["MessageId"]: name
        for name, (body, _, _) in REFUSED.items()
    }
    for body in (
        of_a_stock_client(task_id="order 5"),
        encoded(envelope(old_body(task="work.quick", args=["old"]), protocol=1)),
    ):
        site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    worker = site.start(pool=pool)
    for key in ("stock", "old"):
        site.diary.wait_for("started", key=key)
    wait_until(lambda: site.counts(dead_url)[0] == len(REFUSED), 60, lambda: worker.log[-5000:])
    told = {ids[message]: letter for message, letter in letters(site, dead_url).items()}
    assert told.keys() == REFUSED.keys()
    for name, (_, reason, task) in REFUSED.items():
        assert reason in told[name][0], name
        assert told[name][1] == task, name
    assert worker.log.count("task=no.such") > 0
    assert worker.running
