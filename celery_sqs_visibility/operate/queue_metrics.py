"""CloudWatch's metrics of queues that SQS does not tell: age of the oldest message, and traffic.

CloudWatch has a value a minute for each queue that was in use within six hours. The values are free; asking
for a thousand of them costs USD 0.01. Where CloudWatch is not asked, or does not answer, nothing else is
affected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, QueueMetric, Span
from celery_sqs_visibility.aws.error_codes import reworded
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.transport.broker_clients import settings_of_queue
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: A queue that comes into use may lack values for this long (SQS's guide: "up to 15 minutes").
AGE_WINDOW_SECONDS: Final = 15 * 60
MINUTE_SECONDS: Final = 60
HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 24 * HOUR_SECONDS

OLDEST: Final = "ApproximateAgeOfOldestMessage"

#: Metrics whose sums, together, are about as many as the requests were: one for a receive that brought
#: nothing; and of messages one each to send, receive and delete it, or a tenth where batches are full.
TRAFFIC: Final = (
    "NumberOfEmptyReceives",
    "NumberOfMessagesSent",
    "NumberOfMessagesReceived",
    "NumberOfMessagesDeleted",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """By Celery's name of the queue, a figure where there is one; and why some are missing."""

    figures: dict[str, float]
    error: SQSError | None = None


class QueueMetrics:
    """Asks CloudWatch about queues. Any thread.

    `cloudwatch_of` gives the CloudWatch of a queue's account and region.
    """

    def __init__(self, cloudwatch_of: Callable[[Queue], CloudWatch], clock: Clock = SYSTEM_CLOCK) -> None:
        self._cloudwatch_of = cloudwatch_of
        self._clock = clock

    def oldest_ages(self, queues: Sequence[Queue]) -> Measured:
        """Seconds since the oldest message of each queue was sent, as of a minute ago or two."""
        measured = self._ask(queues, (OLDEST,), "Maximum", AGE_WINDOW_SECONDS, MINUTE_SECONDS)
        return Measured({queue: values[0] for queue, values in measured[0].items()}, measured[1])

    def requests_of_a_day(self, queues: Sequence[Queue]) -> Measured:
        """An estimate of each queue's requests within the last 24 hours; see `TRAFFIC`."""
        measured = self._ask(queues, TRAFFIC, "Sum", DAY_SECONDS, HOUR_SECONDS)
        return Measured({queue: sum(values) for queue, values in measured[0].items()}, measured[1])

    def _ask(
        self,
        queues: Sequence[Queue],
        names: Sequence[str],
        statistic: Literal["Maximum", "Sum"],
        window_seconds: int,
        period_seconds: int,
    ) -> tuple[dict[str, list[float]], SQSError | None]:
        now = self._clock.wall()
        span = Span(now - window_seconds, now, period_seconds)
        shared: defaultdict[CloudWatch, list[Queue]] = defaultdict(list)
        found: defaultdict[str, list[float]] = defaultdict(list)
        error: SQSError | None = None
        for queue in queues:
            shared[self._cloudwatch_of(queue)].append(queue)
        for cloudwatch, some in shared.items():
            metrics = [
                (queue.name, QueueMetric(queue.sqs_name, name, statistic)) for queue in some for name in names
            ]
            try:
                _refuse_to_mix(cloudwatch, some[0])
                answers = cloudwatch.values([metric for _, metric in metrics], span)
            except SQSError as failure:
                error = _explained(failure)
                continue
            for (queue_name, _), values in zip(metrics, answers, strict=True):
                if values:
                    found[queue_name] += values
        return dict(found), error


def metrics_of(context: BrokerContext) -> QueueMetrics:
    """For the queues of a broker. Equal settings share clients."""
    clients: dict[ClientSettings, CloudWatch] = {}

    def cloudwatch_of(queue: Queue) -> CloudWatch:
        settings = settings_of_queue(queue.name, context.client_settings, context.options)
        return clients.setdefault(settings, CloudWatch(settings))

    return QueueMetrics(cloudwatch_of)


def _refuse_to_mix(cloudwatch: CloudWatch, queue: Queue) -> None:
    """Amazon's CloudWatch knows nothing of an emulator's queues, nor the reverse."""
    location = queue.sqs.location()
    if location.is_amazons != cloudwatch.location().is_amazons:
        raise UnavailableError(
            f"the queues are at {location}, of which CloudWatch knows nothing", code="NoMetrics"
        )


def _explained(error: SQSError) -> SQSError:
    if not isinstance(error, AccessDeniedError):
        return error
    return reworded(
        error, f"CloudWatch does not tell ages and requests: allow cloudwatch:GetMetricData. {error}"
    )
