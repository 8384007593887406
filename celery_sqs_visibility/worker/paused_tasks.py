"""Paused tasks: their messages wait, without a run or an attempt, and other tasks of the queue go on.

A message waits as a copy in SQS, which has neither receives nor attempts of its own. Hidden instead, each
receive would count as an attempt, and the last that the redrive policy allows would make it a dead letter.
Where there can be no copy (in a FIFO queue, of a payload in S3, without the permission to send) the worker
holds the message, without a slot. A FIFO group waits with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery.worker import state

from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.delivery.receive.pauses import LOOK_SECONDS, Pauses
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.worker.rate_limits import MAX_HELD
from celery_sqs_visibility.worker.request import DeliveryRequest

if TYPE_CHECKING:
    from celery_sqs_visibility.worker.worker_context import WorkerContext


class PausedTasks:
    """Stands before the pool: a request whose task is paused is not handed over.

    Runs on Celery's main thread; without an event loop on its timer's thread, too.

    Args:
        pauses: of tasks, by their names.
    """

    def __init__(self, consumer: Any, worker: WorkerContext, pauses: Pauses) -> None:
        self._consumer = consumer
        self._pauses = pauses
        #: Requests that wait in memory. Beyond `MAX_HELD` the worker receives no others in their place.
        self._held: WeakSet[DeliveryRequest] = WeakSet()
        worker.waits_for_resume = self.wait

    def wait(self, request: DeliveryRequest) -> bool:
        """Let a request that is about to run wait, if its task is paused. Returns whether it waits."""
        left = self._pauses.seconds_left(request.name)
        if not left or request.delivery is None or not request.delivery.held:
            return False
        seconds = min(left, LOOK_SECONDS)
        if not request.put_off(SYSTEM_CLOCK.wall() + seconds, Why.PAUSE):
            self._hold(request, seconds)
        state.task_ready(request)
        return True

    def _hold(self, request: DeliveryRequest, seconds: float) -> None:
        """Keep it in Celery's timer, as a task with an ETA."""
        delivery = request.delivery
        if delivery is not None and delivery.consumer is not None:
            makes_room = len(self._held) < MAX_HELD
            delivery.consumer.rest(delivery, Wait.START if makes_room else Wait.FAR_START)
        self._held.add(request)
        self._consumer.qos.increment_eventually()
        self._consumer.timer.call_after(seconds, self._look, (request,), priority=6)

    def _look(self, request: DeliveryRequest) -> None:
        """Hand it over, unless its task is still paused, or its message was given back."""
        self._held.discard(request)
        if request.delivery is not None and request.delivery.held:
            self._consumer.apply_eta_task(request)
