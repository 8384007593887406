"""An SQS for one consumer, played by the proxy from memory: as in production, it costs the worker no CPU."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import deque

import boto3
from support.faults import json_answer


class PlayedQueue:
    """A fault that answers receives and deletes itself. It hands out no message twice."""

    def __init__(self, bodies):
        sent = str(int(time.time() * 1000))
        self._messages = deque(
            {
                "MessageId": f"{number:08x}-0000-4000-8000-000000000000",
                "ReceiptHandle": f"{number:x}".rjust(180, "A"),
                "Body": body,
                "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
                "Attributes": {
                    "ApproximateReceiveCount": "1",
                    "ApproximateFirstReceiveTimestamp": sent,
                    "SentTimestamp": sent,
                },
            }
            for number, body in enumerate(bodies)
        )

    def __call__(self, request, forward, removed):
        if request.action == "ReceiveMessage":
            return json_answer(200, self._receive(request.parameters, removed))
        if request.action == "DeleteMessageBatch":
            ids = [entry["Id"] for entry in request.parameters["Entries"]]
            return json_answer(200, {"Successful": [{"Id": one} for one in ids], "Failed": []})
        return forward(request)

    def _receive(self, parameters, removed):
        messages = []
        for _ in range(parameters.get("MaxNumberOfMessages", 1)):
            try:
                messages.append(self._messages.popleft())
            except IndexError:
                break
        if not messages:
            removed.wait(parameters.get("WaitTimeSeconds", 0))
        return {"Messages": messages} if messages else {}


def bodies_in(server, queue):
    """All that is in a queue."""
    client = boto3.client("sqs", endpoint_url=server.url)
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    answers = iter(lambda: client.receive_message(QueueUrl=url, MaxNumberOfMessages=10), None)
    batches = itertools.takewhile(bool, (answer.get("Messages") for answer in answers))
    return [message["Body"] for batch in batches for message in batch]
