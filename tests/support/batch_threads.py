"""Work of batch threads, done on the test's own thread."""

from __future__ import annotations

from support.processes import wait_until

from celery_sqs_visibility.delivery.batch_threads import BatchThreads


def work_off(batch_threads: BatchThreads, timeout: float = 30) -> int:
    """Send all that is due, and wait until other threads have; how many batches were sent here."""
    sent = 0
    while batch_threads.send_next():
        sent += 1
    wait_until(lambda: _idle(batch_threads), timeout, "batches of other threads")
    return sent


def _idle(batch_threads: BatchThreads) -> bool:
    """Whether all of its threads wait: a batch is not in progress any more while it is concluded."""
    with batch_threads.lock:
        threads = sum(thread.is_alive() for thread in batch_threads._threads)
        return not batch_threads._in_progress and len(batch_threads._woken._waiters) == threads
