"""How many messages wait in queues, and for how long. No message is received to find out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from celery_sqs_visibility.aws.queue_counts import DELAYED, HIDDEN, VISIBLE, count, counts
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.found_queues import dead_letter_queue
from celery_sqs_visibility.operate.parallel import for_each
from celery_sqs_visibility.operate.queue_metrics import QueueMetrics
from celery_sqs_visibility.transport.broker_context import BrokerContext


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The messages of one queue, approximately, as SQS counts. `None` is unknown.

    Attributes:
        queue: Celery's name of it.
        visible: messages that a receive may bring.
        in_flight: messages that were received and are hidden, while they run or wait for a retry.
        delayed: messages that were sent with a delay that is not over.
        oldest_age_seconds: since the oldest message was sent; CloudWatch's, a minute or two old.
        dead_letters: messages that wait in its dead-letter queue, which other queues may share.
        error: why a figure is unknown.
    """

    queue: str
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    oldest_age_seconds: float | None = None
    dead_letters: int | None = None
    error: SQSError | None = None

    def with_age(self, seconds: float | None) -> QueueDepth:
        """It, with that age of the oldest message."""
        return replace(self, oldest_age_seconds=seconds)


def queue_depths(
    context: BrokerContext, names: Iterable[str], metrics: QueueMetrics | None = None
) -> list[QueueDepth]:
    """Ask SQS about queues by Celery's names, several at a time; and CloudWatch, where `metrics` are given.

    Any thread but an event loop's. Costs two requests a queue, and another once for the URLs; CloudWatch's
    see `QueueMetrics`. Raises nothing: each depth has its error.
    """
    depths = for_each(names, lambda name: _depth(context, name))
    return depths if metrics is None else with_ages(depths, metrics, found_queues(context, depths))


def found_queues(context: BrokerContext, depths: Sequence[QueueDepth]) -> list[Queue]:
    """The queues that SQS has counted."""
    return [context.queues.find(depth.queue) for depth in depths if depth.visible is not None]


def with_ages(
    depths: Sequence[QueueDepth], metrics: QueueMetrics, queues: Sequence[Queue]
) -> list[QueueDepth]:
    """The depths with the ages of the queues' oldest messages."""
    ages = metrics.oldest_ages(queues)
    return [
        replace(depth.with_age(ages.figures.get(depth.queue)), error=depth.error or ages.error)
        for depth in depths
    ]


def _depth(context: BrokerContext, name: str) -> QueueDepth:
    try:
        queue = context.queues.find(name)
        visible, in_flight, delayed = counts(queue, VISIBLE, HIDDEN, DELAYED)
    except SQSError as error:
        return QueueDepth(name, error=error)
    depth = QueueDepth(name, visible, in_flight, delayed)
    try:
        letters = dead_letter_queue(context, queue)
        return depth if letters is None else replace(depth, dead_letters=count(letters, VISIBLE))
    except SQSError as error:
        return replace(depth, error=error)
