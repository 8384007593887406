"""Series that a recorder fills, on a clock that stands still."""

import pytest

from celery_sqs_visibility.operate.metrics.recorder import Recorder
from celery_sqs_visibility.operate.metrics.series import Series


@pytest.fixture
def series():
    return Series()


@pytest.fixture
def recorder(series, clock):
    queues = {"sqs-q": "q", "sqs-q.fifo": "q.fifo"}
    others = {"c-celeryev-": "monitor", "c-": "control"}
    recorder = Recorder(series, {"tasks.add"}, lambda: queues, clock, others)
    recorder.start()
    yield recorder
    recorder.stop()
