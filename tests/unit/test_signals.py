"""Each signal is a listener of one event."""

import pytest

from celery_sqs_visibility import horizon_near, message_lost
from celery_sqs_visibility.events import Deleted, DeliveryFacts, HorizonNear, Lost, emit
from celery_sqs_visibility.signals import send_signals

FACTS = DeliveryFacts("q", "message-1", 1, 0.0, "tasks.add")


@pytest.mark.parametrize(
    ("signal", "event", "told"),
    [
        (message_lost, Lost(FACTS, "gone"), {"reason": "gone"}),
        (horizon_near, HorizonNear(FACTS, 900.0), {"seconds": 900.0}),
    ],
)
def test_it_is_sent_once_however_often_workers_start(signal, event, told):
    heard = []

    def hear(sender, delivery, signal, **facts):
        heard.append((sender, delivery, facts))

    signal.connect(hear)
    send_signals()
    send_signals()
    emit(Deleted(FACTS))
    emit(event)
    signal.disconnect(hear)
    emit(event)
    assert heard == [("tasks.add", FACTS, told)]
