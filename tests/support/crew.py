"""A crew's work, done on the test's own thread, beside the crew's own if they run."""

from __future__ import annotations

import time

from celery_sqs_visibility.delivery.crew import Crew


def work_off(crew: Crew, timeout: float = 5) -> int:
    """Do all that is due, and wait for what others have in hand; how many batches were done here."""
    turns = 0
    while crew.turn():
        turns += 1
    until = time.monotonic() + timeout
    while crew.in_hand():
        assert time.monotonic() < until, crew.in_hand()
        time.sleep(0.001)
    return turns
