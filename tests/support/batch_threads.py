"""Work of batch threads, done on the test's own thread."""

from __future__ import annotations

from celery_sqs_visibility.delivery.batch_threads import BatchThreads


def work_off(batch_threads: BatchThreads) -> int:
    """Send all that is due here, where no thread does; how many batches that were."""
    sent = 0
    while batch_threads.send_next():
        sent += 1
    return sent
