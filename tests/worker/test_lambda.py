"""A Lambda function's module, imported and called in a process of its own as Lambda's runtime does it."""

import json
import subprocess
import sys
import uuid

import boto3
from support.aws_events import s3_notification, s3_record
from support.exclusive_stores import create_table
from support.worker import environment

from celery_sqs_visibility import task_id_for
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: Headers by which a message's payload goes to S3.
LARGE = {"padding": "x" * MESSAGE_BYTES}

RUNTIME = """
import json, sys
from celery_sqs_visibility import lambda_handler
from {module} import app

class Context:
    get_remaining_time_in_millis = staticmethod(lambda: {seconds} * 1000)

print(json.dumps(lambda_handler(app)(json.load(sys.stdin), Context)))
"""


def invoke(site, module="importing", seconds=30):
    """Receive as Lambda does, and call the function in a process of its own; what it reports."""
    attributes = site.sqs.get_queue_attributes(QueueUrl=site.url, AttributeNames=["QueueArn"])
    messages = site.sqs.receive_message(
        QueueUrl=site.url,
        MaxNumberOfMessages=10,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
        WaitTimeSeconds=10,
    )["Messages"]
    site.handles = [message["ReceiptHandle"] for message in messages]
    records = [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": {
                name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": attributes["Attributes"]["QueueArn"],
        }
        for message in messages
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUNTIME.format(module=module, seconds=seconds)],
        env=environment(site.config, AWS_ENDPOINT_URL_SQS=site.proxy.url),
        input=json.dumps({"Records": records}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *printed, answer = map(json.loads, done.stdout.splitlines())
    site.printed = printed
    return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


def test_a_function_runs_what_sqs_has_for_it(make_site):
    site = make_site(visibility_timeout=30, metrics=["emf"])
    dead_url = site.create_queue_with_dead_letters(receives=10)
    keys = ["good", "bad"]
    for key in keys:
        body = json.dumps(s3_notification(s3_record(key=key)))
        site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    (failed,) = invoke(site)
    (run,) = [entry for entry in site.diary.entries("started") if entry["key"] == "bad"]
    assert run["id"] == task_id_for(failed)
    assert site.diary.entries("done", key="good")
    # Lambda would delete the good one. The bad one is back after its error visibility timeout, for good.
    assert site.changes() == [1]
    (line,) = site.printed
    assert (line["MessagesReceived"], line["TasksSucceeded"], line["TasksRetried"]) == (2, 1, 1)
    assert invoke(site) == []
    assert site.counts(dead_url) == (1, 0)


def test_a_function_fetches_payloads_and_runs_a_key_once(make_site, emulator, monkeypatch):
    for service in ("S3", "DYNAMODB"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", emulator.url)
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=(bucket := f"bucket-{uuid.uuid4().hex}"))
    site = make_site(payload_store=f"s3://{bucket}", coordination_store=f"dynamodb://{create_table()}")
    for _ in range(2):
        site.app.send_task("exclusive.keyed", ["a"], headers=LARGE)
    assert invoke(site, "exclusive") == []
    assert [entry["key"] for entry in site.diary.entries("done")] == ["a"]
    assert site.changes() == []
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 2, "they are the lifecycle rule's"
    s3.close()
