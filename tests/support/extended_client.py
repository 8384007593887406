"""Amazon's SQS Extended Client Library for Python, in a process of its own: it changes boto3 for all.

`extended_client.py ENDPOINT receive QUEUE_URL BUCKET` prints one message's body, and deletes the message;
`... send QUEUE_URL BUCKET` sends what it reads.
"""

import sys

import boto3
import sqs_extended_client  # noqa: F401 - it adds to boto3's client for SQS

endpoint, command, url, bucket = sys.argv[1:]
client = boto3.client("sqs", endpoint_url=endpoint)
client.large_payload_support = bucket
client.s3_client = boto3.client("s3", endpoint_url=endpoint)
if command == "send":
    client.send_message(QueueUrl=url, MessageBody=sys.stdin.read())
else:
    client.delete_payload_from_s3 = True
    (message,) = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    sys.stdout.write(message["Body"])
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
