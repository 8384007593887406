"""What is no task for this worker is kept: in the dead-letter queue, or hidden."""

from __future__ import annotations

import base64
import json

import pytest
from support.faults import error

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
    site.proxy.wait_for(lambda _: site.counts() == (0, 4))
    assert worker.log.count("message is no task for this worker") == 4
    assert worker.running


def test_with_a_dead_letter_queue_they_go_there_with_the_reason(make_site, sqs):
    # The unknown task, which another worker may know, goes there only at the last receive allowed.
    site = make_site(error_visibility_timeout=1)
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


def test_a_stock_task_that_is_not_acknowledged_on_failure_comes_back(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.start()
    site.send("stock_failing", "a")
    site.diary.wait_for("done", key="a")
    assert site.diary.count("started", key="a") == 2
    reliability("`acks_on_failure_or_timeout=False`", "a stock task fails once", ["a"], runs=2)


def test_what_failed_for_good_is_kept_where_the_redrive_policy_cannot_be_read(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.proxy.inject(error("AccessDenied", 403), "GetQueueAttributes")
    worker = site.start()
    errback = site.app.signature("work.on_error")
    result = site.send("hopeless", "a", link_error=errback)
    site.diary.wait_for("errback")
    # It comes back, as SQS's own redrive policy wants it to; but it is neither run nor failed again.
    site.proxy.wait_for(lambda _: len(receives_of(site)) >= 5)
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 3
    assert site.diary.count("errback") == 1
    assert sum(site.counts()) == 1
    assert worker.log.count("allow sqs:GetQueueAttributes") == 1
    reliability("no `sqs:GetQueueAttributes`", "a task fails for good", ["a"], kept=site.kept)


@pytest.mark.own_pool
def test_a_task_that_kills_every_worker_ends_as_a_failure(make_site):
    site = make_site(visibility_timeout=2, heartbeat_interval=1.5, wait_time_seconds=1)
    result = site.send("hopeless_killer", "a")
    # max_retries=0; three more receives are forgiven, because they might have been releases.
    for attempt in range(4):
        worker = site.start(pool="solo")
        site.diary.wait_for("started", attempt + 1, key="a")
        worker.wait_exit()
    site.start(pool="solo")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 4


def test_what_was_only_released_runs_even_if_it_may_not_be_retried(make_site, reliability):
    site = make_site(visibility_timeout=60)
    site.create_queue()
    site.send("once", "a")
    for _ in range(2):  # as two deploys do with what they have fetched and not begun
        message = site.sqs.receive_message(QueueUrl=site.url, WaitTimeSeconds=5)["Messages"][0]
        site.sqs.change_message_visibility(
            QueueUrl=site.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    site.start()
    site.diary.wait_for("started", key="a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    reliability("two deploys give a message back", "`max_retries=0`", ["a"], ended="started")


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_an_exit_in_a_task_is_a_failure_like_any_other_where_there_are_no_children(make_site, pool):
    site = make_site(visibility_timeout=4)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=1)
    site.send("exiting", "ours")
    site.send("stock_exiting", "stock")
    site.diary.wait_for("done", key="ours")
    site.diary.wait_for("started", key="stock")
    site.send("quick", "after")
    site.diary.wait_for("started", key="after")
    assert site.diary.count("started", key="ours") == 2
    assert worker.running


@pytest.mark.own_pool
def test_what_celery_leaves_unacknowledged_comes_back(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.start(pool="threads")  # in prefork, Celery ends the worker for want of memory
    site.send("stock_out_of_memory", "a")
    site.diary.wait_for("done", key="a")
    reliability("a stock task is out of memory", "on threads, once", ["a"], runs=2)


@pytest.mark.own_pool
def test_a_consumer_in_a_task_leaves_the_workers_alone(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start(pool="threads")
    site.send("with_a_queue_of_its_own", "a", f"{site.queue}-own")
    site.diary.wait_for("done", key="a")
    site.send("quick", "after")
    site.diary.wait_for("started", key="after")
    assert worker.running


def receives_of(site):
    """The polls that brought something."""
    return [call for call in site.proxy.calls("ReceiveMessage") if (call.response or {}).get("Messages")]
