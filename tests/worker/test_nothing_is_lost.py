"""What is no task for this worker is kept: in the dead-letter queue, or hidden."""

from __future__ import annotations

import base64
import json

import pytest

FOREIGN = json.dumps({"Records": [{"eventSource": "aws:s3"}]})
NOT_BASE64 = "§ neither JSON nor base64 §"


def unreadable(site):
    site.app.send_task("work.nobody_knows", ("a",))
    site.sqs.send_message(QueueUrl=site.url, MessageBody=FOREIGN)
    site.sqs.send_message(QueueUrl=site.url, MessageBody=NOT_BASE64)
    headless = {"body": "", "properties": {"delivery_info": {}}, "headers": {}}
    site.sqs.send_message(
        QueueUrl=site.url, MessageBody=base64.b64encode(json.dumps(headless).encode()).decode()
    )


def test_without_dead_letter_queue_they_are_hidden_and_the_good_ones_run(make_site):
    site = make_site(error_visibility_timeout=60)
    site.create_queue()
    unreadable(site)
    worker = site.start()
    site.send("quick", "good")
    site.diary.wait_for("started", key="good")
    site.proxy.wait_for(lambda _: site.changes() == [60] * 4)
    assert site.counts() == (0, 4)
    assert worker.log.count("message is no task for this worker") == 4
    assert worker.running


def test_with_a_dead_letter_queue_they_go_there_with_the_reason(make_site, sqs):
    site = make_site()
    dead_url = sqs.create_queue(QueueName=f"{site.queue}-dead")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": 3}
    site.create_queue(RedrivePolicy=json.dumps(policy))
    unreadable(site)
    failing = site.send("hopeless", "fails for good")
    site.start()
    site.proxy.wait_for(lambda _: site.counts(dead_url) == (5, 0), timeout=60)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    letters = sqs.receive_message(
        QueueUrl=dead_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
    )["Messages"]
    reasons = {letter["MessageAttributes"]["reason"]["StringValue"] for letter in letters}
    assert "task 'work.nobody_knows' is not registered" in reasons
    assert "failed at its last attempt" in reasons
    assert FOREIGN in {letter["Body"] for letter in letters}
    assert failing.state == "FAILURE"


def test_the_queues_max_receive_count_is_the_last_attempt(make_site, sqs):
    site = make_site()
    dead_url = sqs.create_queue(QueueName=f"{site.queue}-dead")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    site.create_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 2}))
    site.start()
    result = site.send("hopeless", "a")
    site.proxy.wait_for(lambda _: site.counts(dead_url) == (1, 0), timeout=30)
    assert result.state == "FAILURE"
    assert [entry["retries"] for entry in site.diary.entries("started", key="a")] == [0, 1]


@pytest.mark.parametrize("task", ["stock_failing"])
def test_a_stock_task_that_is_not_acknowledged_on_failure_comes_back(make_site, task):
    site = make_site(visibility_timeout=3)
    site.start()
    site.send(task, "a")
    site.diary.wait_for("done", key="a")
    assert site.diary.count("started", key="a") == 2
