"""A crew's work, done on the test's own thread, beside the crew's own if they run."""

from __future__ import annotations

from support.processes import wait_until

from celery_sqs_visibility.delivery.batch_threads import BatchThreads


def work_off(batch_threads: BatchThreads, timeout: float = 30) -> int:
    """Do all that is due, and wait until others have, to the end; how many batches were done here."""
    turns = 0
    while batch_threads.send_next():
        turns += 1
    wait_until(lambda: _idle(batch_threads), timeout, "what others have in hand")
    return turns


def _idle(batch_threads: BatchThreads) -> bool:
    """Whether all of its threads wait: a batch is in nobody's hands while it is concluded."""
    with batch_threads.lock:
        threads = sum(thread.is_alive() for thread in batch_threads._threads)
        return not batch_threads._in_progress and len(batch_threads._woken._waiters) == threads
