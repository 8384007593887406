"""Paused tasks: their messages wait, without a run or an attempt, while other tasks of the queue go on.

A message waits as a copy in SQS, which starts without receives or attempts. If it were hidden instead, each
receive would count as an attempt, and the last one that the redrive policy allows would make it a dead
letter. If no copy can be sent (in a FIFO queue, with a payload in S3, without the permission) the worker
holds the message, without a slot. A FIFO group waits with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.worker import state

from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.delivery.receive.pauses import LOOK_SECONDS, Pauses
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests

if TYPE_CHECKING:
    from celery_sqs_visibility.worker.request import DeliveryRequest


def wait_for_resume(pauses: Pauses, waiting: WaitingRequests, request: DeliveryRequest) -> bool:
    """Let a request that is about to run wait if its task is paused. Returns whether it waits.

    Called on Celery's main thread, or, without an event loop, on its timer's thread.
    """
    left = pauses.seconds_left(request.name)
    if not left or request.delivery is None or not request.delivery.held:
        return False
    seconds = min(left, LOOK_SECONDS)
    if not request.put_off(seconds, Why.PAUSE):
        waiting.hold(request)
        waiting.call_after(seconds, waiting.hand_over, request)
    state.task_ready(request)
    return True
