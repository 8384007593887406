from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from support.clock import FakeClock
from support.factories import sqs_queue
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.cloudwatch import CloudWatch, QueueMetric, Span
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.operate.queue_metrics import DAY_SECONDS, OLDEST, TRAFFIC, QueueMetrics


def measure(cloudwatch):
    return QueueMetrics(lambda _queue: cloudwatch, FakeClock())


def test_the_age_is_the_newest_value_and_the_traffic_a_sum():
    values = {
        ("q", OLDEST): [7.0, 99.0],
        ("q", "NumberOfEmptyReceives"): [10.0, 5.0],
        ("q", TRAFFIC[1]): [2.0],
    }
    cloudwatch = FakeCloudWatch(values)
    queues = [sqs_queue("q"), sqs_queue("silent")]
    assert measure(cloudwatch).oldest_ages(queues).figures == {"q": 7.0}
    assert measure(cloudwatch).requests_of_a_day(queues).figures == {"q": 17.0}
    _, span = cloudwatch.spans
    assert span.end - span.start == DAY_SECONDS


@pytest.mark.parametrize(
    ("cloudwatch", "sentence"),
    [
        (FakeCloudWatch(error=AccessDeniedError("no")), "allow cloudwatch:GetMetricData"),
        (FakeCloudWatch(error=UnavailableError("gone")), "gone"),
        (FakeCloudWatch(endpoint="https://monitoring.us-east-1.amazonaws.com"), "knows nothing"),
    ],
)
def test_without_an_answer_there_is_a_reason(cloudwatch, sentence):
    measured = measure(cloudwatch).oldest_ages([sqs_queue()])
    assert measured.figures == {}
    assert sentence in str(measured.error)


def test_cloudwatch_answers_over_boto3(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", emulator.url)
    client = boto3.client("cloudwatch")
    now = datetime.now(UTC)
    dimensions = [{"Name": "QueueName", "Value": "q"}]
    data = [{"MetricName": OLDEST, "Dimensions": dimensions, "Timestamp": now, "Value": 42}]
    client.put_metric_data(Namespace="AWS/SQS", MetricData=data)
    client.close()
    span = Span(now.timestamp() - 300, now.timestamp() + 60, 60)
    metrics = [QueueMetric("q", OLDEST, "Maximum"), QueueMetric("other", OLDEST, "Maximum")]
    cloudwatch = CloudWatch(ClientSettings("us-east-1"))
    assert cloudwatch.values(metrics, span) == [[42.0], []]
    assert cloudwatch.location().endpoint == emulator.url


def test_cloudwatch_that_cannot_be_reached_is_unavailable(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", "http://127.0.0.1:9")
    settings = ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret")
    with pytest.raises(UnavailableError, match="no answer from CloudWatch"):
        CloudWatch(settings).values([QueueMetric("q", OLDEST, "Maximum")], Span(0, 300, 60))
