"""A Lambda function's module, imported and called in a process of its own as Lambda's runtime does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from support.app import CONFIG_VARIABLE, encode_config
from support.aws_events import s3_notification, s3_record
from support.worker import IMPORT_PATHS

from celery_sqs_visibility import task_id_for

RUNTIME = """
import json, sys
from celery_sqs_visibility import lambda_handler
from importing import app

class Context:
    get_remaining_time_in_millis = staticmethod(lambda: 30_000)

print(json.dumps(lambda_handler(app)(json.load(sys.stdin), Context)))
"""


def test_a_function_runs_what_sqs_has_for_it(make_site):
    site = make_site(visibility_timeout=30)
    dead_url = site.create_queue_with_dead_letters(receives=10)
    arn = site.sqs.get_queue_attributes(QueueUrl=site.url, AttributeNames=["QueueArn"])
    keys = ["good", "bad"]
    for key in keys:
        body = json.dumps(s3_notification(s3_record(key=key)))
        site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, IMPORT_PATHS)),
        CONFIG_VARIABLE: encode_config(site.config),
        "AWS_ENDPOINT_URL_SQS": site.proxy.url,
    }

    def invoke():
        messages = site.sqs.receive_message(
            QueueUrl=site.url, MaxNumberOfMessages=10, AttributeNames=["All"], WaitTimeSeconds=10
        )["Messages"]
        records = [
            {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": message["Attributes"],
                "messageAttributes": {},
                "eventSource": "aws:sqs",
                "eventSourceARN": arn["Attributes"]["QueueArn"],
            }
            for message in messages
        ]
        done = subprocess.run(
            [sys.executable, "-c", RUNTIME],
            env=env,
            input=json.dumps({"Records": records}),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return [each["itemIdentifier"] for each in json.loads(done.stdout)["batchItemFailures"]]

    (failed,) = invoke()
    (run,) = [entry for entry in site.diary.entries("started") if entry["key"] == "bad"]
    assert run["id"] == task_id_for(failed)
    assert site.diary.entries("done", key="good")
    # Lambda would delete the good one. The bad one is back after its error visibility timeout, for good.
    assert site.changes() == [1]
    assert invoke() == []
    assert site.counts(dead_url) == (1, 0)
