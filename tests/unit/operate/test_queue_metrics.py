import pytest
from support.clock import FakeClock
from support.factories import sqs_queue
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.operate.queue_metrics import (
    AGE,
    DAY_SECONDS,
    OLDEST,
    REQUESTS_OF_A_DAY,
    TRAFFIC,
    QueueMetrics,
)


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
    assert measure(cloudwatch).measure(AGE, queues).figures == {"q": 7.0}
    assert measure(cloudwatch).measure(REQUESTS_OF_A_DAY, queues).figures == {"q": 17.0}
    _, (start, end, _) = cloudwatch.spans
    assert end - start == DAY_SECONDS


@pytest.mark.parametrize(
    ("cloudwatch", "sentence"),
    [
        (FakeCloudWatch(error=AccessDeniedError("no")), "allow cloudwatch:GetMetricData"),
        (FakeCloudWatch(error=UnavailableError("gone")), "gone"),
        (FakeCloudWatch(endpoint="https://monitoring.us-east-1.amazonaws.com"), "knows nothing"),
    ],
)
def test_without_an_answer_there_is_a_reason(cloudwatch, sentence):
    measured = measure(cloudwatch).measure(AGE, [sqs_queue()])
    assert measured.figures == {}
    assert sentence in str(measured.error)
