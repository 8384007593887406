"""Requests that wait in the worker's memory until they may run, without a slot.

Celery holds requests with an ETA in its timer, and those beyond their rate limit in a token bucket. Requests
of a paused task, or of one whose brake is on, are held when the pool asks whether they may run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from celery_sqs_visibility.contacts.worker import replace_apply_eta_task
from celery_sqs_visibility.core.delivery import Delivery, Wait
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: If more requests wait, other than for an ETA, the worker receives no more messages in their place.
MAX_HELD: Final = 1000


class WaitingRequests:
    """Counts waiting requests, and hands over those that it holds.

    Called on Celery's main thread, or, without an event loop, on its timer's thread. Each field is read and
    then written by only one of them, or a short-lived error in it is harmless. Created before the consumer's
    tasks have strategies.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._counted: WeakSet[Any] = WeakSet()
        self._apply_eta_task = replace_apply_eta_task(consumer, self.apply_eta_task)

    def wait_for_eta(self, request: Any) -> None:
        """Free the slot of a request that Celery holds until its ETA."""
        if request.eta.timestamp() > SYSTEM_CLOCK.wall():
            _rest(request, Wait.START)

    def apply_eta_task(self, request: Any) -> None:
        """Take a slot for a task whose ETA has come. Celery's timer."""
        self.resume(request)
        self._apply_eta_task(request)

    def rest(self, request: Any, *, makes_room: bool = True) -> None:
        """Free a request's slot until `resume`. With `makes_room`, another message is received meanwhile."""
        makes_room = makes_room and len(self._counted) < MAX_HELD
        if makes_room:
            self._counted.add(request)
        _rest(request, Wait.START if makes_room else Wait.FAR_START)

    def resume(self, request: Any) -> None:
        """Take a slot for a waiting request again. Idempotent."""
        self._counted.discard(request)
        if (delivery := delivery_of(request)) is not None and delivery.consumer is not None:
            delivery.consumer.resume(delivery)

    def hold(self, request: Any, *, makes_room: bool = True) -> None:
        """Hold a request that the pool was about to run, like one with an ETA."""
        self.rest(request, makes_room=makes_room)
        self._consumer.qos.increment_eventually()

    def hand_over(self, request: Any) -> None:
        """Hand a held request to the pool, which asks again, unless its message was given back."""
        if request.delivery.held:
            self._consumer.apply_eta_task(request)
        else:
            self._consumer.qos.decrement_eventually()

    def call_after(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Let Celery's timer call `act` later, unless the connection is lost before."""
        self._consumer.timer.call_after(seconds, act, args, priority=6)  # the priority of an ETA


def delivery_of(request: Any) -> Delivery | None:
    """The delivery of a request; `None` if its message is not from SQS."""
    delivery: Delivery | None = getattr(request, "delivery", None)
    return delivery


def _rest(request: Any, wait: Wait) -> None:
    if (delivery := delivery_of(request)) is not None and delivery.consumer is not None:
        delivery.consumer.rest(delivery, wait)
