"""What a worker has beside the messages that it holds: runs."""

from __future__ import annotations

from celery_sqs_visibility.core.settlements import RELEASE, DeadLetter, Delete, Hide, Lapse

#: How a run may end.
ENDS = {
    "success": lambda _: Delete(),
    "success, too": lambda _: Delete(),
    "failure": lambda _: Hide(7),
    "failure, for long": lambda _: Hide(400),
    "failure, at its own time": lambda _: Lapse(),
    "release": lambda _: RELEASE,
    "given up": lambda run: DeadLetter("broken", run.message_id, otherwise=Hide(9)),
    "given up, or released": lambda run: DeadLetter("broken", run.message_id, otherwise=RELEASE),
}


class Run:
    """A task that Celery has, and maybe runs; a request, as a shutdown sees it."""

    name = "task"

    def __init__(self, delivery, *, early):
        self.delivery = delivery
        self.id = self.message_id = delivery.facts.message_id
        self.begun = False
        self.killed = False
        self.early = delivery.acknowledged_early = early

    def end_in_shutdown(self):
        self.killed = True
