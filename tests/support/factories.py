"""Builders of what unit tests need, named for what they make."""

from __future__ import annotations

import json
from typing import Any

from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.delivery.receive.decoder import Opened
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.options import Options

TIMEOUT = 120  # the visibility timeout of all deliveries
EVERYTHING = ReceiveOptions(TIMEOUT, ("All",), ("All",))
CHANGES = "ChangeMessageVisibilityBatch"
DELETES = "DeleteMessageBatch"

# Queues and messages


def queue(sqs, name: str = "q", *, letters: Queue | None = None, most: int = 3, **attributes: str) -> Queue:
    """A queue of that fake; with `letters`, its dead-letter queue, after `most` receives."""
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if letters is not None:
        arn = sqs.queue_attributes(letters.url, ["QueueArn"])["QueueArn"]
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": most})
    return Queue(name, sqs.create_queue(name, attributes, {}), sqs)


def send(queue: Queue, *bodies: str) -> None:
    """Put messages into it; in a FIFO queue each into a group of its own."""
    for number, body in enumerate(bodies):
        group = {"group_id": str(number), "deduplication_id": str(number)} if queue.fifo else {}
        queue.sqs.send(queue.url, OutgoingMessage(body, **group))


def counts(queue: Queue) -> tuple[int, int]:
    """Messages visible and hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    visible, hidden = map(int, queue.sqs.queue_attributes(queue.url, names).values())
    return visible, hidden


def left(queue: Queue) -> int:
    """Messages in the queue."""
    return sum(counts(queue))


def requests(sqs: FakeSQS, action: str) -> list[dict[str, Any]]:
    """The arguments of the requests of that action."""
    return [arguments for name, arguments in sqs.calls if name == action]


def entries(sqs: FakeSQS, action: str) -> list[list[Any]]:
    """The entries of the batch requests of that action: receipt handles, or those with seconds."""
    return [arguments["handles" if action == DELETES else "changes"] for arguments in requests(sqs, action)]


# Deliveries


def delivery(
    queue: Queue, holder: Any = None, *, handle: str = "h1", now: float = 1000.0, **facts
) -> Delivery:
    """One that was received at that monotonic instant; `facts` are those of `Facts`."""
    known = {"message_id": "m1", "receive_count": 1, "first_received": 0.0, **facts}
    return Delivery(queue, handle, Facts(queue.name, **known), now, now + TIMEOUT, holder)


def received(queue: Queue, count: int, clock: FakeClock, **facts) -> list[Delivery]:
    """Deliveries of messages that are sent to the queue, and received from it."""
    send(queue, *["task"] * count)
    return [
        delivery(
            queue,
            handle=message["ReceiptHandle"],
            now=clock.monotonic(),
            message_id=message["MessageId"],
            **facts,
        )
        for _ in range(0, count, 10)
        for message in queue.sqs.receive(queue.url, min(count, 10), 0, EVERYTHING)
    ]


# Consumers


def open_by_handle(_queue: Queue, message: Any) -> Opened:
    """A payload that says which delivery it is."""
    return Opened({"handle": message["ReceiptHandle"], "body": message["Body"]})


def queue_consumer(clock, *, buffer=None, redeliveries=None, open_message=open_by_handle, **options):
    """A consumer that may hold ten messages; `options` are transport options."""
    made = QueueConsumer(
        Options.parse({"visibility_timeout": TIMEOUT, "settle_window": 0, **options}),
        EVERYTHING,
        open_message,
        RedriveBook(),
        redeliveries or RedeliveryIndex(TIMEOUT, clock),
        Buffer() if buffer is None else buffer,
        clock,
    )
    made.capacity.prefetch_count = 10
    return made
