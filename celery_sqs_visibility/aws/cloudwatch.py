"""CloudWatch over boto3: Amazon's metrics of queues, and lines of log groups."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.process_lock import ProcessClients
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock, sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Limit of API_GetMetricData.
MAX_METRICS_PER_REQUEST: Final = 500

#: Lines of an answer; Insights' own limit is 10,000.
MAX_LINES: Final = 1000

#: How long an answer is waited for, and how often it is asked for, in seconds.
QUERY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5

UNFINISHED: Final = frozenset({"Scheduled", "Running", "Unknown"})


#: How values within a period are combined.
Statistic = Literal["Maximum", "Sum"]


class _Service:
    """The API actions that we use, for one set of settings. Ignores the endpoint in the settings.

    Any thread. Every method raises an `SQSError` and nothing else.
    """

    service: Literal["cloudwatch", "logs"]

    def __init__(self, settings: ClientSettings) -> None:
        self._clients = ProcessClients[Any](lambda: new_client(settings, ClientPurpose.PUBLISH, self.service))

    def _call(self, action: str, request: Callable[[Any], Any]) -> Any:
        try:
            return request(self._clients.get())
        except Exception as exc:  # noqa: BLE001 - see above
            error = translate(exc, action, self.service)
            raise error from error.__cause__ or exc


class CloudWatch(_Service):
    """Metrics."""

    service = "cloudwatch"

    def location(self) -> Location:
        """Return where requests go, without a request."""
        meta = self._call("GetMetricData", lambda client: client.meta)
        return Location(meta.region_name, meta.endpoint_url)

    def values(
        self,
        metrics: Sequence[tuple[str, str]],
        statistic: Statistic,
        start: float,
        end: float,
        period_seconds: int,
    ) -> list[list[float]]:
        """GetMetricData: return each metric's values from `start` to `end`, newest first.

        `metrics` are pairs of a queue's name at SQS and a metric's name. Amazon bills each metric of each
        request (USD 0.01 per thousand, us-east-1, 2025).
        """
        found: list[list[float]] = [[] for _ in metrics]
        for first in range(0, len(metrics), MAX_METRICS_PER_REQUEST):
            some = metrics[first : first + MAX_METRICS_PER_REQUEST]
            query: dict[str, Any] = {
                "MetricDataQueries": [
                    _query(first + i, *metric, statistic, period_seconds) for i, metric in enumerate(some)
                ],
                "StartTime": datetime.fromtimestamp(start, UTC),
                "EndTime": datetime.fromtimestamp(end, UTC),
                "ScanBy": "TimestampDescending",
            }
            while True:
                answer = self._call(
                    "GetMetricData",
                    lambda client: client.get_metric_data(**query),  # noqa: B023 - called here
                )
                for result in answer["MetricDataResults"]:
                    found[int(result["Id"].removeprefix("m"))] += result["Values"]
                if not (token := answer.get("NextToken")):
                    break
                query["NextToken"] = token
        return found


def _query(number: int, queue: str, metric: str, statistic: Statistic, period_seconds: int) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": queue}]
    return {
        "Id": f"m{number}",
        "MetricStat": {
            "Metric": {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": dimensions},
            "Period": period_seconds,
            "Stat": statistic,
        },
    }


class CloudWatchLogs(_Service):
    """Lines of log groups. Their times are in seconds since the epoch."""

    service = "logs"

    def __init__(self, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(settings)
        self._clock = clock

    def lines_with(self, text: str, group: str, start: float, end: float) -> list[str]:
        """StartQuery and GetQueryResults: return lines that contain the text, oldest first.

        Amazon bills what the query reads (USD 0.005 a GB, us-east-1, 2025).
        """
        query = (
            f"fields @message | filter @message like {json.dumps(text)} "
            f"| sort @timestamp asc | limit {MAX_LINES}"
        )
        began = self._call(
            "StartQuery",
            lambda client: client.start_query(
                logGroupName=group, startTime=int(start), endTime=int(end) + 1, queryString=query
            ),
        )
        until = self._clock.monotonic() + QUERY_SECONDS
        while (answer := self._results(began["queryId"]))["status"] in UNFINISHED:
            if self._clock.monotonic() >= until:
                raise UnavailableError(
                    f"CloudWatch Logs has not answered a query of {group!r} within {QUERY_SECONDS:g} s: "
                    "ask about a shorter time",
                    code="QueryTimeout",
                )
            sleep(LOOK_SECONDS)
        if answer["status"] != "Complete":
            raise UnavailableError(f"a query of {group!r} ended as {answer['status']}", code=answer["status"])
        fields = [{each["field"]: each["value"] for each in row} for row in answer["results"]]
        return [row["@message"] for row in fields if "@message" in row]

    def lines_of_messages(self, group: str, start: float, end: float) -> Iterator[str]:
        """FilterLogEvents: yield the lines of a JSON log that tell of a message, in the order of their time.

        Free, and slow for a group with much else: Amazon looks at ten pages of it a second at the most.
        """
        query: dict[str, Any] = {
            "logGroupName": group,
            "startTime": int(start * 1000),
            "endTime": int(end * 1000),
            "filterPattern": '{ $.message_id = "*" }',
        }
        while True:
            page = self._call("FilterLogEvents", lambda client: client.filter_log_events(**query))
            yield from (each["message"] for each in page["events"])
            if not (token := page.get("nextToken")):
                return
            query["nextToken"] = token

    def _results(self, query: str) -> Any:
        return self._call("GetQueryResults", lambda client: client.get_query_results(queryId=query))
