"""CloudWatch over boto3: Amazon's metrics of queues."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.process_lock import ProcessClients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Limit of API_GetMetricData.
MAX_METRICS_PER_REQUEST: Final = 500


@dataclass(frozen=True, slots=True)
class QueueMetric:
    """A metric in the namespace AWS/SQS, for a queue by its name at SQS."""

    queue: str
    name: str
    statistic: Literal["Maximum", "Sum"]


@dataclass(frozen=True, slots=True)
class Span:
    """A time range in seconds since the epoch, with periods of whole minutes."""

    start: float
    end: float
    period_seconds: int


class CloudWatch:
    """The API actions that we use, for one set of settings. Ignores the endpoint in the settings.

    Any thread. Every method raises an `SQSError` and nothing else.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._clients = ProcessClients[Any](lambda: new_client(settings, ClientPurpose.PUBLISH, "cloudwatch"))

    def location(self) -> Location:
        """Return where requests go, without a request."""
        meta = self._call(lambda client: client.meta)
        return Location(meta.region_name, meta.endpoint_url)

    def values(self, metrics: Sequence[QueueMetric], span: Span) -> list[list[float]]:
        """GetMetricData: return each metric's values in the span, newest first.

        Amazon bills each metric of each request (USD 0.01 per thousand, us-east-1, 2025).
        """
        found: list[list[float]] = [[] for _ in metrics]
        for first in range(0, len(metrics), MAX_METRICS_PER_REQUEST):
            some = metrics[first : first + MAX_METRICS_PER_REQUEST]
            query: dict[str, Any] = {
                "MetricDataQueries": [_query(first + i, metric, span) for i, metric in enumerate(some)],
                "StartTime": datetime.fromtimestamp(span.start, UTC),
                "EndTime": datetime.fromtimestamp(span.end, UTC),
                "ScanBy": "TimestampDescending",
            }
            while True:
                answer = self._call(lambda client: client.get_metric_data(**query))  # noqa: B023 - called here
                for result in answer["MetricDataResults"]:
                    found[int(result["Id"].removeprefix("m"))] += result["Values"]
                if not (token := answer.get("NextToken")):
                    break
                query["NextToken"] = token
        return found

    def _call(self, request: Callable[[Any], Any]) -> Any:
        try:
            return request(self._clients.get())
        except Exception as exc:  # noqa: BLE001 - see the class
            error = translate(exc, "GetMetricData", "cloudwatch")
            raise error from error.__cause__ or exc


def _query(number: int, metric: QueueMetric, span: Span) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": metric.queue}]
    return {
        "Id": f"m{number}",
        "MetricStat": {
            "Metric": {"Namespace": "AWS/SQS", "MetricName": metric.name, "Dimensions": dimensions},
            "Period": span.period_seconds,
            "Stat": metric.statistic,
        },
    }
