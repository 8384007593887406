"""Pausing and resuming a worker's queues, and how they are.

All of it is called on Celery's main thread and makes no request there: a thread gives back what waits.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from celery.utils.log import get_logger
from celery.worker import state

from celery_sqs_visibility.delivery.consumer import QueueConsumer
from celery_sqs_visibility.delivery.threads import copy_of, start_thread
from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = get_logger(__name__)

FOR_EVER: Final = math.inf


class QueueNotConsumedError(LookupError):
    """The worker does not consume the queue."""


class NothingGivenBackError(RuntimeError):
    """No thread could be started that gives back what waits."""

    def __init__(self) -> None:
        super().__init__(
            "no thread could be started that gives back what waits; the queue is paused all the same. "
            "Pause it again, to have it given back"
        )


def consumed_queues(context: BrokerContext) -> list[str]:
    """Celery's names of the worker's queues, paused ones included, in order."""
    return sorted({name for each in _consumers(context) for name in each.consumed()})


def pause(context: BrokerContext, queue: str, seconds: float = FOR_EVER) -> dict[str, Any]:
    """Begin no poll of the queue for that long, and have given back what waits; its condition before that.

    Raises:
        QueueNotConsumedError: nothing is changed.
        NothingGivenBackError: it is paused.
    """
    _check(context, queue)
    before = conditions(context)[queue]
    context.pauses.pause(queue, seconds)
    consumers = _consumers(context)
    for each in consumers:
        each.notice_pause(queue)
    how_long = "until it is resumed" if seconds == FOR_EVER else f"for {seconds:g} s"
    logger.info("queue %r is paused %s; a worker that starts meanwhile polls it", queue, how_long)
    if start_thread(_give_back, f"sqs-pause-{queue}", context, consumers, queue) is None:
        raise NothingGivenBackError
    return {**before, **_pause_of(context, queue)}


def resume(context: BrokerContext, queue: str) -> bool:
    """Poll the queue again; whether it was paused.

    Raises:
        QueueNotConsumedError: nothing is changed.
    """
    _check(context, queue)
    was_paused = context.pauses.get(queue) is not None
    context.pauses.resume(queue)
    for each in _consumers(context):
        each.notice_pause(queue)
    if was_paused:
        logger.info("queue %r is resumed", queue)
    return was_paused


def conditions(context: BrokerContext) -> dict[str, dict[str, Any]]:
    """Of each queue whether it is paused, for how long still, what is held of it, and what runs."""
    held = Counter(each.facts.queue for one in _consumers(context) for each in one.ledger.all())
    deliveries = [getattr(request, "delivery", None) for request in copy_of(state.active_requests)]
    running = Counter(each.facts.queue for each in deliveries if each is not None)
    return {
        queue: {**_pause_of(context, queue), "held": held[queue], "running": running[queue]}
        for queue in consumed_queues(context)
    }


def _pause_of(context: BrokerContext, queue: str) -> dict[str, Any]:
    left = context.pauses.seconds_left(queue)
    return {"paused": left > 0, "seconds_left": round(left, 1) if 0 < left < FOR_EVER else None}


def _consumers(context: BrokerContext) -> list[QueueConsumer]:
    """Those of earlier connections, too, as long as a run of theirs goes on."""
    return copy_of(context.worker_queue_consumers)


def _check(context: BrokerContext, queue: str) -> None:
    if queue not in (queues := consumed_queues(context)):
        raise QueueNotConsumedError(f"consumes {', '.join(map(repr, queues))}, and not {queue!r}")


def _give_back(context: BrokerContext, consumers: list[QueueConsumer], queue: str) -> None:
    """A thread's own."""
    released = [delivery for each in consumers for delivery in each.give_back_unstarted(queue)]
    context.forget_given_back(released)
    if released:
        logger.info("paused queue %r: messages given back that had not begun: %s", queue, len(released))
