from itertools import count

import pytest
from moto.sqs import models
from moto.sqs.models import SQSBackend

from celery_sqs_visibility.contacts import moto_server

NAMES = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]


@pytest.mark.parametrize("ticks", range(0, 18, 2))
def test_visible_and_hidden_messages_are_counted_at_one_moment(monkeypatch, ticks):
    backend = SQSBackend("us-east-1", "123456789012")
    backend.create_queue("orders", {})
    backend.send_message("orders", "a")
    [message] = backend.receive_message("orders", 1, 0, 30)
    clock = count(int(message.visible_at) - ticks)  # each look at it takes a millisecond
    monkeypatch.setattr(moto_server, "clock", lambda: next(clock))
    monkeypatch.setattr(models, "unix_time_millis", models.unix_time_millis)  # put back in the end
    counts = moto_server.count(backend, "orders", NAMES)
    assert counts == {NAMES[0]: 0, NAMES[1]: 1}
