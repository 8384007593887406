"""Makes what many tests need, with defaults for what the test at hand does not care about."""

from __future__ import annotations

from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.policy.prefetch import Slots

# Receiving.

RECEIVE_OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",))


def sqs_queue(name="q", sqs=None):
    """A queue of a fake SQS; FIFO if its name says so."""
    sqs = sqs or FakeSQS(FakeClock())
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    return Queue(name, sqs.create_queue(name, attributes, {}), sqs)


def send(queue, *bodies, group="g"):
    """Put messages into a queue."""
    for body in bodies:
        fifo = {"group_id": group, "deduplication_id": body} if queue.fifo else {}
        queue.sqs.send(queue.url, OutgoingMessage(body, **fifo))


def capacity(prefetch_count=10, queues=1, *, slots=None, clock=None, prefetch_seconds=0.0):
    """The capacity of a worker that consumes so many queues; of a pool, or as kombu has it."""
    pool = None if slots is None else lambda: Slots(slots, prefetch_count)
    made = ReceiveCapacity(prefetch_seconds, clock or FakeClock(), pool)
    made.prefetch_count = prefetch_count
    for _ in range(queues):
        made.add_queue()
    return made
