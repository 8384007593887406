"""Metrics of queues, over boto3."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, QueueMetric, Span
from celery_sqs_visibility.errors import UnavailableError

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
    span = Span(now.timestamp() - 300, now.timestamp() + 60, 60)
    metrics = [QueueMetric("q", OLDEST, "Maximum"), QueueMetric("other", OLDEST, "Maximum")]
    cloudwatch = CloudWatch(SETTINGS)
    assert cloudwatch.values(metrics, span) == [[42.0], []]
    assert cloudwatch.location().endpoint == emulator.url


def test_one_that_cannot_be_reached_is_unavailable(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="no answer from CloudWatch"):
        CloudWatch(SETTINGS).values([QueueMetric("q", OLDEST, "Maximum")], Span(0, 300, 60))
