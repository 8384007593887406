"""Tell the workers that an object has arrived, as S3 does: `python -m proj.arrive shop day.csv`."""

from __future__ import annotations

import json
import sys
from urllib.parse import quote_plus

import boto3

from proj.celery import app


def main(bucket: str, key: str) -> None:
    about = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key)}}
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": about}
    sqs = boto3.client("sqs")
    url = sqs.get_queue_url(QueueName=app.conf.task_default_queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"Records": [record]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
