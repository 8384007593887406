"""The signal is a listener of one event."""

from __future__ import annotations

from celery_sqs_visibility import message_lost
from celery_sqs_visibility.events import Deleted, Facts, Lost, emit
from celery_sqs_visibility.signals import send_signals

FACTS = Facts("q", "message-1", 1, 0.0, "tasks.add")


def test_a_lost_message_is_signalled_once_however_often_workers_start():
    heard = []

    def on_lost(sender, delivery, reason, **_):
        heard.append((sender, delivery, reason))

    message_lost.connect(on_lost)
    send_signals()
    send_signals()
    emit(Deleted(FACTS))
    emit(Lost(FACTS, "gone"))
    message_lost.disconnect(on_lost)
    emit(Lost(FACTS, "gone"))
    assert heard == [("tasks.add", FACTS, "gone")]
