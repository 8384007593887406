"""CloudWatch's metrics of queues: age of the oldest message, and traffic.

CloudWatch has one value a minute for each queue that was used within the last six hours. A thousand values
cost USD 0.01.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, Statistic
from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.transport.broker_clients import settings_of_queue
from celery_sqs_visibility.transport.broker_context import BrokerContext

DAY_SECONDS: Final = 86_400

OLDEST: Final = "ApproximateAgeOfOldestMessage"

#: Metrics whose sum is about the number of requests: one for each empty receive; and for each message one to
#: send, receive and delete it, or a tenth if batches are full.
TRAFFIC: Final = (
    "NumberOfEmptyReceives",
    "NumberOfMessagesSent",
    "NumberOfMessagesReceived",
    "NumberOfMessagesDeleted",
)


class Figure(NamedTuple):
    """A figure of a queue, from CloudWatch's values within a window, newest first."""

    names: tuple[str, ...]
    statistic: Statistic
    window_seconds: int
    period_seconds: int
    combine: Callable[[list[float]], float]


def _a_second(sums: list[float]) -> float:
    return sum(sums) / len(sums) / 60


#: Seconds since the oldest message was sent, a minute or two ago. A queue that was unused before may lack
#: values for the whole window (SQS's guide: "up to 15 minutes").
AGE: Final = Figure((OLDEST,), "Maximum", 15 * 60, 60, itemgetter(0))

#: An estimate of the requests in the last 24 hours.
REQUESTS_OF_A_DAY: Final = Figure(TRAFFIC, "Sum", DAY_SECONDS, 3600, sum)

#: Messages sent, or deleted, per second: averages over some minutes.
SENT: Final = Figure(("NumberOfMessagesSent",), "Sum", 5 * 60, 60, _a_second)
DELETED: Final = Figure(("NumberOfMessagesDeleted",), "Sum", 5 * 60, 60, _a_second)


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures by Celery's names of the queues, and why some are missing."""

    figures: dict[str, float]
    error: SQSError | None = None


class QueueMetrics:
    """Asks CloudWatch about queues. Any thread.

    `cloudwatch_of` returns the CloudWatch of a queue's account and region.
    """

    def __init__(self, cloudwatch_of: Callable[[Queue], CloudWatch], clock: Clock = SYSTEM_CLOCK) -> None:
        self._cloudwatch_of = cloudwatch_of
        self._clock = clock

    def measure(self, figure: Figure, queues: Sequence[Queue]) -> Measured:
        """Ask for a figure of these queues."""
        now = self._clock.wall()
        by_cloudwatch: defaultdict[CloudWatch, list[Queue]] = defaultdict(list)
        found: defaultdict[str, list[float]] = defaultdict(list)
        error: SQSError | None = None
        for queue in queues:
            by_cloudwatch[self._cloudwatch_of(queue)].append(queue)
        for cloudwatch, its_queues in by_cloudwatch.items():
            pairs = [(queue, name) for queue in its_queues for name in figure.names]
            metrics = [(queue.sqs_name, name) for queue, name in pairs]
            try:
                _check_location(cloudwatch, its_queues[0])
                answers = cloudwatch.values(
                    metrics, figure.statistic, now - figure.window_seconds, now, figure.period_seconds
                )
            except SQSError as failure:
                error = _explained(failure)
                continue
            for (queue, _), values in zip(pairs, answers, strict=True):
                found[queue.name] += values
        figures = {queue: figure.combine(values) for queue, values in found.items() if values}
        return Measured(figures, error)


def metrics_of(context: BrokerContext) -> QueueMetrics:
    """The metrics of a broker's queues. Queues with equal settings share clients."""
    clients: dict[ClientSettings, CloudWatch] = {}

    def cloudwatch_of(queue: Queue) -> CloudWatch:
        settings = settings_of_queue(queue.name, context.client_settings, context.options)
        return clients.setdefault(settings, CloudWatch(settings))

    return QueueMetrics(cloudwatch_of)


def _check_location(cloudwatch: CloudWatch, queue: Queue) -> None:
    """Refuse to ask Amazon's CloudWatch about an emulator's queues, or an emulator's about Amazon's."""
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
