"""Work of a lane of the pump, done on the test's own thread."""

from __future__ import annotations

from celery_sqs_visibility.delivery.pump import Lane


def work_off(lane: Lane) -> int:
    """Send all that is due here, where no thread does; how many batches that were."""
    sent = 0
    while lane.send_next():
        sent += 1
    return sent
