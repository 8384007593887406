"""Predefined queues in a real worker: a role in another account, a routing key, kombu's backoff policy."""

from __future__ import annotations

import boto3
import pytest
from support.commands import run_celery
from support.faults import error

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


@pytest.mark.parametrize("code", ["AccessDenied", "AWS.SimpleQueueService.PurgeQueueInProgress"])
def test_a_purge_that_is_refused_is_no_success(make_site, code):
    site = make_site()
    site.create_queue()
    site.send("quick", "a")
    with site.proxy.inject(error(code, 403, "not now"), "PurgeQueue"):
        refused = run_celery(site.config, "purge", "-f")
    assert (refused.returncode, "No messages purged" in refused.stdout) == (1, False)
    assert refused.stderr.startswith("Error: PurgeQueue")
    assert "Traceback" not in refused.stderr
    purged = run_celery(site.config, "purge", "-f")
    assert (purged.returncode, purged.stdout) == (0, "Purged 1 message from 1 known task queue.\n")
