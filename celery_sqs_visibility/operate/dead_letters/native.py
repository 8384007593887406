"""Has SQS itself move all messages of a dead-letter queue (StartMessageMoveTask)."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import click

from celery_sqs_visibility.aws.port import MoveTask
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.operate.dead_letters.places import Place
from celery_sqs_visibility.operate.invocation import CommandError

#: The fastest pace that SQS can be told (API_StartMessageMoveTask).
MOST_PER_SECOND: Final = 500

#: Seconds between two questions about its progress.
LOOK_SECONDS: Final = 2.0


def move_all(place: Place, per_second: float | None) -> dict[str, Any]:
    """Start it, and watch it to its end. Ctrl-C ends the watching only.

    Raises:
        CommandError: SQS does not move these messages, or did not move them all.
    """
    if not place.is_of_policy:
        raise CommandError(
            f"SQS moves messages only from a queue that a redrive policy names, and that of queue "
            f"{place.source.name!r} does not name {place.letters.name!r}: leave out --native"
        )
    pace = None if per_second is None else max(1, min(int(per_second), MOST_PER_SECOND))
    source = place.letters.arn()
    place.letters.sqs.start_move_task(source, place.source.arn(), pace)
    try:
        task = _watched(place.letters, source)
    except KeyboardInterrupt:
        raise CommandError("SQS goes on moving the messages; this command no longer watches it") from None
    if task.status != "COMPLETED":
        raise CommandError(
            f"SQS moved {task.moved} messages, and then: {task.status}, {task.failure or 'no reason given'}. "
            "The others are dead letters still"
        )
    return {"moved": task.moved, "to": place.source.name}


def _watched(queue: Queue, source_arn: str) -> MoveTask:
    """The task when it has ended."""
    while True:
        try:
            task = queue.sqs.latest_move_task(source_arn) or MoveTask("COMPLETED")
        except UnavailableError:
            task = MoveTask("RUNNING")
        if task.status not in {"RUNNING", "CANCELLING"}:
            return task
        if sys.stderr.isatty():
            click.echo(f"\r{task.moved} of {task.to_move or '?'} moved", err=True, nl=False)
        threading.Event().wait(LOOK_SECONDS)
