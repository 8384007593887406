"""A crew's work, done on the test's own thread, beside the crew's own if they run."""

from __future__ import annotations

from support.processes import wait_until

from celery_sqs_visibility.delivery.crew import Crew


def work_off(crew: Crew, timeout: float = 30) -> int:
    """Do all that is due, and wait until others have, to the end; how many batches were done here."""
    turns = 0
    while crew.turn():
        turns += 1
    wait_until(lambda: _idle(crew), timeout, "what others have in hand")
    return turns


def _idle(crew: Crew) -> bool:
    """Whether all of its threads wait: a batch is in nobody's hands while it is concluded."""
    with crew.lock:
        threads = sum(thread.is_alive() for thread in crew._threads)
        return not crew._hands and len(crew._called._waiters) == threads
