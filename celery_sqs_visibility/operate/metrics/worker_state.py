"""How busy a worker is, read when somebody asks. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery_sqs_visibility.delivery.threads import copy_of
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Labels, Series
from celery_sqs_visibility.transport.broker_context import BrokerContext


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How many tasks it may run at once, how many run, and how many messages it holds."""

    slots: int
    busy: int
    held: int


def worker_state(context: BrokerContext) -> WorkerState:
    """Of the worker of this process."""
    consumers = copy_of(context.worker_queue_consumers)
    held = [delivery for consumer in consumers for delivery in consumer.ledger.all()]
    busy = sum(delivery.started for delivery in held) + sum(each.capacity.runs for each in consumers)
    return WorkerState(context.slots().number if context.slots else 0, busy, len(held))


def of_queues(context: BrokerContext, tell: Callable[[str], bool]) -> list[tuple[Labels, float]]:
    """Of each queue that the worker consumes what is told of it."""
    queues = {queue for consumer in copy_of(context.worker_queue_consumers) for queue in consumer.consumed()}
    return [((queue,), tell(queue)) for queue in sorted(queues)]


def show_state(series: Series, context: BrokerContext) -> None:
    """Have the series tell it."""
    series.gauges[names.SLOTS] = lambda: [((), worker_state(context).slots)]
    series.gauges[names.SLOTS_BUSY] = lambda: [((), worker_state(context).busy)]
    series.gauges[names.HELD] = lambda: [((), worker_state(context).held)]
    pauses, turns = context.pauses, context.turns
    series.gauges[names.PAUSED] = lambda: of_queues(context, lambda queue: pauses.get(queue) is not None)
    series.gauges[names.FULL] = lambda: of_queues(context, lambda queue: bool(turns and turns.is_full(queue)))
