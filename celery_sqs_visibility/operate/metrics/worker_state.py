"""How busy a worker is, read when somebody asks. Any thread."""

from __future__ import annotations

from dataclasses import dataclass

from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Series
from celery_sqs_visibility.transport.broker_context import BrokerContext


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How many tasks it may run at once, how many run, and how many messages it holds."""

    slots: int
    busy: int
    held: int


def worker_state(context: BrokerContext) -> WorkerState:
    """Of the worker of this process."""
    consumers = list(context.worker_queue_consumers)
    held = [delivery for consumer in consumers for delivery in consumer.ledger.all()]
    busy = sum(delivery.started for delivery in held) + sum(each.capacity.runs for each in consumers)
    return WorkerState(context.slots().number if context.slots else 0, busy, len(held))


def paused(context: BrokerContext) -> dict[str, bool]:
    """Of each queue that the worker consumes whether it is paused."""
    queues = {queue for consumer in list(context.worker_queue_consumers) for queue in consumer.consumed()}
    return {queue: context.pauses.get(queue) is not None for queue in sorted(queues)}


def show_state(series: Series, context: BrokerContext) -> None:
    """Have the series tell it."""
    series.gauges[names.SLOTS] = lambda: [((), worker_state(context).slots)]
    series.gauges[names.SLOTS_BUSY] = lambda: [((), worker_state(context).busy)]
    series.gauges[names.HELD] = lambda: [((), worker_state(context).held)]
    series.gauges[names.PAUSED] = lambda: [((queue,), each) for queue, each in paused(context).items()]
