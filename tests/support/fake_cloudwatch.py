"""CloudWatch in memory: values by the queue's and the metric's name."""

from celery_sqs_visibility.aws.port import Location


class FakeCloudWatch:
    """As `aws.cloudwatch.CloudWatch`. `error` is raised in place of an answer."""

    def __init__(self, values=None, *, endpoint="memory://cloudwatch", error=None):
        self._values = values or {}
        self._endpoint = endpoint
        self._error = error
        self.spans = []

    def location(self):
        return Location("us-east-1", self._endpoint)

    def values(self, metrics, _statistic, start, end, period_seconds):
        if self._error:
            raise self._error
        self.spans.append((start, end, period_seconds))
        return [self._values.get(metric, []) for metric in metrics]
