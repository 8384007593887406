"""Builders that tests of several modules share; each is named for what it makes."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

from celery.app.trace import build_tracer

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
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
