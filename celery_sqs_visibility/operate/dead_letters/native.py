"""Has SQS itself move all messages of a dead-letter queue (StartMessageMoveTask)."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import click

from celery_sqs_visibility.aws.port import MoveTask
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import SQSError, UnavailableError
from celery_sqs_visibility.operate.dead_letters.places import Place
from celery_sqs_visibility.operate.invocation import CommandError, counted

#: The fastest pace that SQS can be told (API_StartMessageMoveTask).
MOST_PER_SECOND: Final = 500

#: Codes of endpoints that do not know an action; the numbers are statuses of answers without a code.
NOT_KNOWN: Final = frozenset(
    ("404", "405", "500", "501", "InvalidAction", "NotImplemented", "UnknownOperationException")
)

#: Seconds between two questions about its progress.
LOOK_SECONDS: Final = 2.0

#: Looks at a list that does not have the task yet.
MOST_LOOKS_WITHOUT: Final = 15


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
    if per_second is not None and per_second < 1:
        raise CommandError(f"SQS moves one message a second at the least, and --rate is {per_second:g}")
    pace = None if per_second is None else min(int(per_second), MOST_PER_SECOND)
    source = place.letters.arn()
    before = _start(place, source, pace)
    try:
        task = _watched(place.letters, source, before)
    except KeyboardInterrupt:
        raise CommandError("SQS goes on moving the messages; this command no longer watches it") from None
    if task.status != "COMPLETED":
        raise CommandError(
            f"SQS moved {counted(task.moved, 'message')}, and then: {task.status}, "
            f"{task.failure or 'no reason given'}. The others are dead letters still"
        )
    return {"moved": task.moved, "to": place.source.name}


def _start(place: Place, source_arn: str, pace: int | None) -> MoveTask | None:
    """Start the task. Return the task that was the latest before."""
    try:
        before = place.letters.sqs.latest_move_task(source_arn)
        place.letters.sqs.start_move_task(source_arn, place.source.arn(), pace)
    except SQSError as error:
        if error.code not in NOT_KNOWN:
            raise
        raise CommandError(
            "the endpoint seems to have no StartMessageMoveTask, as some emulators: leave out --native: "
            f"{error}"
        ) from error
    return before


def _watched(queue: Queue, source_arn: str, before: MoveTask | None) -> MoveTask:
    """The task when it has ended; not the one that was the latest before."""
    former, without = before and before.started, 0
    while without < MOST_LOOKS_WITHOUT:
        try:
            task = queue.sqs.latest_move_task(source_arn)
        except UnavailableError:
            task = MoveTask("RUNNING")
        if task is None or (former is not None and task.started == former):
            without += 1
        elif task.status not in {"RUNNING", "CANCELLING"}:
            return task
        elif sys.stderr.isatty():
            click.echo(f"\r{task.moved} of {task.to_move or '?'} moved", err=True, nl=False)
        threading.Event().wait(LOOK_SECONDS)
    raise CommandError(
        f"SQS has begun to move the messages of {queue.name!r}, and does not list the task: look at "
        f"`aws sqs list-message-move-tasks --source-arn {source_arn}`"
    )
