"""What kombu's SQS has: consumers, predefined queues, roles and backoff; what it cannot have harms nobody."""

import boto3
import pytest
from support.processes import SOON, wait_until

RAISING = """
from work import app, quick


def strategy(task, app, consumer):
    def raising(*_, **__):
        raise KeyError("a strategy of the user's")

    return raising


@app.task(name="work.unlucky")
def unlucky(key):
    quick(key)


unlucky.Strategy = strategy
"""


#: As in Celery's guide "Custom Message Consumers".
CONSUMER_STEP = """
import os

from celery import bootsteps
from kombu import Consumer, Queue
from support.diary import note
from work import app


class Orders(bootsteps.ConsumerStep):
    def get_consumers(self, channel):
        queues = [Queue(os.environ["ORDERS"])]
        return [Consumer(channel, queues=queues, callbacks=[self.order], accept=["json"])]

    def order(self, body, message):
        note("ordered", key=body)
        message.ack()


app.steps["consumer"].add(Orders)
"""


def write(tmp_path, name, code):
    (tmp_path / f"{name}.py").write_text(code)
    return {"import_paths": [tmp_path]}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_consumer_step_gets_messages_of_other_programs_and_tasks_run_beside_it(
    make_site, monkeypatch, tmp_path, pool
):
    site = make_site(visibility_timeout=5)
    name = f"{site.queue[:60]}-orders.fifo"
    monkeypatch.setenv("ORDERS", name)
    url = site.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    bodies = ["7 apples", '{"order": 8}', '[{"order": 9}]']
    for number, body in enumerate(bodies):
        ids = {"MessageGroupId": "orders", "MessageDeduplicationId": str(number)}
        site.sqs.send_message(QueueUrl=url, MessageBody=body, **ids)
    worker = site.start("orders", pool=pool, **write(tmp_path, "orders", CONSUMER_STEP))
    for body in bodies:
        site.diary.wait_for("ordered", key=body)
    site.begin("a")
    wait_until(lambda: site.counts(url) == (0, 0), SOON, "what was acknowledged to be deleted")
    assert len(site.diary.entries("ordered")) == len(bodies)
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("settings", [{}, {"event_exchange": "ours", "control_exchange": "ours"}])
def test_events_and_remote_control_go_nowhere_and_harm_nobody(make_site, settings):
    site = make_site({"worker_send_task_events": True, "task_send_sent_event": True, **settings})
    worker = site.start(extra_args=["-E", "--heartbeat-interval", "1"])
    site.begin("a")
    site.app.control.revoke("somebody")
    site.begin("b")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.running
    assert "UnroutableError" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_what_celery_cannot_take_is_kept_and_ends_no_worker(make_site, tmp_path, pool):
    site = make_site(visibility_timeout=10, error_visibility_timeout=60)
    worker = site.start("unlucky", pool=pool, **write(tmp_path, "unlucky", RAISING))
    site.app.send_task("work.nobody_knows", ("a",))
    worker.wait_for_log("message is no task for this worker")
    assert "work.nobody_knows" in worker.log
    site.proxy.wait_for(lambda _: site.changes() == [60])
    site.send("unlucky", "a")
    worker.wait_for_log("message could not be handed to Celery")
    site.begin("after")
    site.proxy.wait_for(lambda _: site.changes() == [60, 60])
    site.proxy.wait_for(lambda _: site.counts() == (0, 2))
    assert worker.running


ROLE = "arn:aws:iam::111122223333:role/worker"
BACKOFF = """
from celery import Task
from support.diary import note
from work import app, failing

stock = {"base": Task, "acks_late": True, "acks_on_failure_or_timeout": False, "max_retries": None}
failing("named", times=2)


@app.task(bind=True, name="work.left_to_sqs", **stock)
def stock_task(self, key):
    note("started", key=key, receives=self.request.sqs["receive_count"])
    if self.request.sqs["receive_count"] < 3:
        note("failing", key=key)
        raise KeyError(key)
"""


@pytest.fixture
def other_account(emulator):
    """A client of SQS in the account of the role."""
    sts = boto3.client("sts", endpoint_url=emulator.url)
    keys = sts.assume_role(RoleArn=ROLE, RoleSessionName="test")["Credentials"]
    client = boto3.client(
        "sqs",
        endpoint_url=emulator.url,
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )
    yield client
    client.close()
    sts.close()


@pytest.mark.parametrize("by", ["url", "name"])
def test_a_queue_of_another_account_is_worked_off_in_a_role_of_its_own(
    make_site, emulator, other_account, queue, monkeypatch, by
):
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", emulator.url)
    url = other_account.create_queue(QueueName=queue)["QueueUrl"]
    found = {"url": url} if by == "url" else {"QueueOwnerAWSAccountId": "111122223333"}
    predefined = {queue: {**found, "sts_role_arn": ROLE, "external_id": "42"}}
    site = make_site(predefined_queues=predefined)
    site.start()
    site.send("quick", "a")
    site.diary.wait_for("started", key="a")
    site.proxy.wait_for_calls("DeleteMessageBatch")
    counts = other_account.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert site.proxy.count("CreateQueue") == 0


def test_a_failed_task_that_a_backoff_policy_names_comes_back_as_that_says(make_site, queue, tmp_path):
    (tmp_path / "backoff.py").write_text(BACKOFF)
    site = make_site()
    tasks = ["work.named", "work.left_to_sqs"]
    policy = {"url": site.create_queue(), "backoff_policy": {"1": 1, "2": 2}, "backoff_tasks": tasks}
    site.config["broker_transport_options"] |= {"predefined_queues": {queue: policy}}
    site.start("backoff", import_paths=[tmp_path])
    for task in tasks:
        site.app.send_task(task, (task,))
    for task in tasks:
        site.diary.wait_for("started", key=task, count=3)
        first, second = site.gaps(task)
        assert (first >= 1, second >= 2) == (True, True)
    assert sorted(site.changes()) == [1, 1, 2, 2]
