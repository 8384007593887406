"""CloudWatch's metrics of queues: age of the oldest message, and traffic.

CloudWatch has a value a minute for each queue that was in use within six hours. Asking for a thousand values
costs USD 0.01.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, QueueMetric, Span
from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.transport.broker_clients import settings_of_queue
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: A queue that comes into use may lack values for this long (SQS's guide: "up to 15 minutes").
AGE_WINDOW_SECONDS: Final = 15 * 60
DAY_SECONDS: Final = 86_400

#: Rates are averages of the values that CloudWatch has of this time.
RATE_WINDOW_SECONDS: Final = 5 * 60

OLDEST: Final = "ApproximateAgeOfOldestMessage"

#: Metrics whose sums, together, are about as many as the requests were: one for a receive that brought
#: nothing; and of messages one each to send, receive and delete it, or a tenth where batches are full.
TRAFFIC: Final = (
    "NumberOfEmptyReceives",
    "NumberOfMessagesSent",
    "NumberOfMessagesReceived",
    "NumberOfMessagesDeleted",
)

#: Of a queue that is asked for all, once.
METRICS_OF_A_QUEUE: Final = 3 + len(TRAFFIC)


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures by Celery's names of the queues, and why some are missing."""

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
        """Seconds since the oldest message of each queue was sent, a minute or two ago."""
        return self._ask(queues, (OLDEST,), "Maximum", AGE_WINDOW_SECONDS, 60, lambda values: values[0])

    def requests_of_a_day(self, queues: Sequence[Queue]) -> Measured:
        """An estimate of each queue's requests within the last 24 hours; see `TRAFFIC`."""
        return self._ask(queues, TRAFFIC, "Sum", DAY_SECONDS, 3600, sum)

    def sent_a_second(self, queues: Sequence[Queue]) -> Measured:
        """Messages that were sent to each queue in a second, within the last minutes."""
        return self._rate(queues, "NumberOfMessagesSent")

    def deleted_a_second(self, queues: Sequence[Queue]) -> Measured:
        """Messages of each queue that were deleted in a second, within the last minutes."""
        return self._rate(queues, "NumberOfMessagesDeleted")

    def _rate(self, queues: Sequence[Queue], name: str) -> Measured:
        return self._ask(
            queues, (name,), "Sum", RATE_WINDOW_SECONDS, 60, lambda sums: sum(sums) / len(sums) / 60
        )

    def _ask(
        self,
        queues: Sequence[Queue],
        names: Sequence[str],
        statistic: Literal["Maximum", "Sum"],
        window_seconds: int,
        period_seconds: int,
        combine: Callable[[list[float]], float],
    ) -> Measured:
        now = self._clock.wall()
        span = Span(now - window_seconds, now, period_seconds)
        by_cloudwatch: defaultdict[CloudWatch, list[Queue]] = defaultdict(list)
        found: defaultdict[str, list[float]] = defaultdict(list)
        error: SQSError | None = None
        for queue in queues:
            by_cloudwatch[self._cloudwatch_of(queue)].append(queue)
        for cloudwatch, its_queues in by_cloudwatch.items():
            pairs = [(queue, name) for queue in its_queues for name in names]
            metrics = [QueueMetric(queue.sqs_name, name, statistic) for queue, name in pairs]
            try:
                _check_location(cloudwatch, its_queues[0])
                answers = cloudwatch.values(metrics, span)
            except SQSError as failure:
                error = _explained(failure)
                continue
            for (queue, _), values in zip(pairs, answers, strict=True):
                found[queue.name] += values
        return Measured({queue: combine(values) for queue, values in found.items() if values}, error)


def metrics_of(context: BrokerContext) -> QueueMetrics:
    """The metrics of a broker's queues. Equal settings share clients."""
    clients: dict[ClientSettings, CloudWatch] = {}

    def cloudwatch_of(queue: Queue) -> CloudWatch:
        settings = settings_of_queue(queue.name, context.client_settings, context.options)
        return clients.setdefault(settings, CloudWatch(settings))

    return QueueMetrics(cloudwatch_of)


def _check_location(cloudwatch: CloudWatch, queue: Queue) -> None:
    """Refuse to ask Amazon's CloudWatch about an emulator's queues, and the reverse."""
    location = queue.sqs.location()
    if location.is_amazons != cloudwatch.location().is_amazons:
        raise UnavailableError(
            f"the queues are at {location}, of which CloudWatch knows nothing", code="NoMetrics"
        )


def _explained(error: SQSError) -> SQSError:
    if not isinstance(error, AccessDeniedError):
        return error
    return reword(
        error, f"CloudWatch does not tell ages and requests: allow cloudwatch:GetMetricData. {error}"
    )
