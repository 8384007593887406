"""Builders that several test modules share: what they make is in their names."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

from celery.app.trace import build_tracer
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.receive.capacity import ReceiveCapacity
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON
from celery_sqs_visibility.task.context import DeliveryContext

# --- a run of a task, without a worker ---


def sqs_facts(receive_count=1, max_receive_count=None, queue="celery", horizon_left=VISIBILITY_HORIZON):
    """`self.request.sqs`, as `DeliveryRequest` describes a delivery."""
    return {
        "queue": queue,
        "receive_count": receive_count,
        "max_receive_count": max_receive_count,
        "horizon": SYSTEM_CLOCK.monotonic() + horizon_left,
    }


def delivery_request(retries=0, **request):
    """What the worker's main process gives a pool's child with a task; `sqs=None`: from another broker."""
    return {
        "id": uuid.uuid4().hex,
        "retries": retries,
        "sqs": sqs_facts(receive_count=retries + 1),
        "delivery_info": {"redelivered": retries > 0},
        "hostname": "here",
        **request,
    }


@contextmanager
def running(task, **request):
    """Inside, `task` runs for a message from SQS."""
    context = DeliveryContext(delivery_request(**request), args=(), kwargs={}, called_directly=False)
    task.push_request(**vars(context))
    try:
        yield task.request
    finally:
        task.pop_request()


def trace(task, args=(), **request):
    """Run a task as a pool's child does; Celery's (retval, info, runtime, retstr)."""
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)
    request = delivery_request(**request)
    return task.__trace__(request["id"], args, {}, request)


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
