"""Metrics of queues, and lines of log groups, over boto3."""

import json
import time
import uuid
from datetime import UTC, datetime
from types import SimpleNamespace

import boto3
import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws import cloudwatch as module
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, CloudWatchLogs
from celery_sqs_visibility.errors import SQSError, UnavailableError

SETTINGS = ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret")
OLDEST = "ApproximateAgeOfOldestMessage"


def test_each_metric_has_its_values(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", emulator.url)
    now = datetime.now(UTC)
    dimensions = [{"Name": "QueueName", "Value": "q"}]
    data = [{"MetricName": OLDEST, "Dimensions": dimensions, "Timestamp": now, "Value": 42}]
    client = boto3.client("cloudwatch", "us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
    client.put_metric_data(Namespace="AWS/SQS", MetricData=data)
    client.close()
    span = (now.timestamp() - 300, now.timestamp() + 60, 60)
    metrics = [("q", OLDEST), ("other", OLDEST)]
    cloudwatch = CloudWatch(SETTINGS)
    assert cloudwatch.values(metrics, "Maximum", *span) == [[42.0], []]
    assert cloudwatch.location().endpoint == emulator.url


def test_one_that_cannot_be_reached_is_unavailable(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="no answer from CloudWatch"):
        CloudWatch(SETTINGS).values([("q", OLDEST)], "Maximum", 0, 300, 60)


NOW = float(int(time.time()) - 60)  # CloudWatch takes no lines of another time


@pytest.fixture
def group(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", emulator.url)
    name = uuid.uuid4().hex
    client = boto3.client("logs", "us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
    client.create_log_group(logGroupName=name)
    client.create_log_stream(logGroupName=name, logStreamName="one")
    events = [{"timestamp": int((NOW + at) * 1000), "message": json.dumps({"at": at})} for at in (1, 2, 3)]
    client.put_log_events(logGroupName=name, logStreamName="one", logEvents=events)
    client.close()
    return name


def test_its_lines_within_the_time_are_returned_in_order(group):
    lines = CloudWatchLogs(SETTINGS).lines_with("at", group, NOW + 2, NOW + 10)
    assert [json.loads(line)["at"] for line in lines] == [2, 3]


def test_its_lines_of_messages_come_in_pages(group):
    logs = CloudWatchLogs(SETTINGS)
    assert [json.loads(line)["at"] for line in logs.lines_of_messages(group, NOW + 1, NOW + 2)] == [1, 2]
    pages = iter([{"events": [{"message": "a"}], "nextToken": "more"}, {"events": [{"message": "b"}]}])
    tokens = []
    client = SimpleNamespace(
        filter_log_events=lambda **query: tokens.append(query.get("nextToken")) or next(pages)
    )
    logs._call = lambda _action, request: request(client)
    assert list(logs.lines_of_messages(group, NOW, NOW)) == ["a", "b"]
    assert tokens == [None, "more"]


def test_a_group_that_does_not_exist_is_an_error_of_ours(group):
    with pytest.raises(SQSError, match="StartQuery"):
        CloudWatchLogs(SETTINGS).lines_with("at", group + "-not", NOW, NOW)


def test_logs_that_cannot_be_reached_are_unavailable(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="no answer from CloudWatch Logs"):
        CloudWatchLogs(SETTINGS).lines_with("at", "group", NOW, NOW)


@pytest.mark.parametrize("status", ["Running", "Failed"])
def test_a_query_that_does_not_end_or_fails_is_an_error(group, monkeypatch, status):
    monkeypatch.setattr(CloudWatchLogs, "_results", lambda *_: clock.advance(40) or {"status": status})
    monkeypatch.setattr(module, "LOOK_SECONDS", 0)
    clock = FakeClock()
    expected = "not answered a query" if status == "Running" else "ended as Failed"
    with pytest.raises(UnavailableError, match=expected):
        CloudWatchLogs(SETTINGS, clock).lines_with("at", group, NOW, NOW)
