"""A crew's work, done on the test's own thread, beside the crew's own if they run."""

from __future__ import annotations

from support.processes import wait_until

from celery_sqs_visibility.delivery.crew import Crew


def work_off(crew: Crew, timeout: float = 5) -> int:
    """Do all that is due, and wait for what others have in hand; how many batches were done here."""
    turns = 0
    while crew.turn():
        turns += 1
    wait_until(lambda: not crew._hands, timeout, "what others have in hand")
    return turns
