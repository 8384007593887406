"""CloudWatch Logs over boto3: lines of a log group."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.process_lock import ProcessClients
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Lines of an answer; Insights' own limit is 10,000.
MAX_LINES: Final = 1000

#: How long an answer is waited for, and how often it is asked for, in seconds.
QUERY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5

UNFINISHED: Final = frozenset({"Scheduled", "Running", "Unknown"})


class CloudWatchLogs:
    """The API actions that we use, for one set of settings. Ignores the endpoint in the settings.

    Any thread. Every method raises an `SQSError` and nothing else.
    """

    def __init__(self, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clients = ProcessClients[Any](lambda: new_client(settings, ClientPurpose.PUBLISH, "logs"))
        self._clock = clock

    def lines_with(self, text: str, group: str, start: float, end: float) -> list[str]:
        """StartQuery and GetQueryResults: return lines that contain the text, oldest first.

        Amazon bills what the query reads (USD 0.005 a GB, us-east-1, 2025).

        Args:
            text: as it stands in the line.
            group: the log group's name.
            start: seconds since the epoch.
            end: seconds since the epoch.
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
            threading.Event().wait(LOOK_SECONDS)
        if answer["status"] != "Complete":
            raise UnavailableError(f"a query of {group!r} ended as {answer['status']}", code=answer["status"])
        fields = [{each["field"]: each["value"] for each in row} for row in answer["results"]]
        return [row["@message"] for row in fields if "@message" in row]

    def lines_of_messages(self, group: str, start: float, end: float) -> Iterator[str]:
        """FilterLogEvents: yield the lines of a JSON log that tell of a message, in the order of their time.

        Free, and slow for a group with much else: Amazon looks at ten pages of it a second at the most.

        Args:
            group: the log group's name.
            start: seconds since the epoch.
            end: seconds since the epoch.
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

    def _call(self, action: str, request: Callable[[Any], Any]) -> Any:
        try:
            return request(self._clients.get())
        except Exception as exc:  # noqa: BLE001 - see the class
            error = translate(exc, action, "logs")
            raise error from error.__cause__ or exc
