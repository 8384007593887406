"""`celery -A proj sqs status`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import click
from celery import Celery

from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.invocation import app_of, broker_of, json_option, show_json, show_table
from celery_sqs_visibility.operate.nodes import CONTROL_IS_OFF, ask, is_controlled, timeout_option
from celery_sqs_visibility.operate.queue_metrics import metrics_of
from celery_sqs_visibility.operate.status.report import QueueReport, QueueStatus, Status
from celery_sqs_visibility.policy.durations import duration_text

#: The cursor to the top left, and nothing below it: the next table takes the place of the last.
REDRAW: Final = "\x1b[H\x1b[J"

QUEUE_COLUMNS: Final = [
    "queue",
    "visible",
    "in flight",
    "delayed",
    "oldest",
    "dead letters",
    "requests/day",
    "USD/day",
]
WORKER_COLUMNS: Final = ["worker", "pool", "slots busy", "held", "paused"]


@click.command()
@click.option(
    "--watch",
    "seconds",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="[SECONDS]",
    help="Show it again every SECONDS (2), until Ctrl-C.",
)
@timeout_option
@json_option
@click.pass_context
def status(ctx: click.Context, seconds: float | None, timeout: float, *, as_json: bool) -> None:
    """Show the app's queues, and its workers where remote control is on.

    No message is received to find out. The oldest message's age, the requests and the cost are CloudWatch's,
    where the credentials may ask it (cloudwatch:GetMetricData): a "-" is unknown.
    """
    app = app_of(ctx)
    with broker_of(app) as context:
        report = QueueReport(context, queue_names(app, context.options), metrics_of(context))

        def take() -> Status:
            return _with_workers(report.take(), app, timeout)

        show = _show_json if as_json else _show
        if seconds is None:
            taken = take()
            show(taken)
            ctx.exit(taken.exit_status)
        _watch(take, show, seconds)


def _watch(take: Callable[[], Status], show: Callable[[Status], None], seconds: float) -> None:
    redraw = REDRAW if sys.stdout.isatty() else ""
    try:
        while True:
            taken = take()
            click.echo(redraw, nl=False)
            show(taken)
            threading.Event().wait(seconds)
    except KeyboardInterrupt:
        return


def _with_workers(taken: Status, app: Celery, timeout: float) -> Status:
    if not is_controlled(app):
        return replace(taken, notes=(*taken.notes, f"the workers are not asked: {CONTROL_IS_OFF}."))
    try:
        workers = ask(app, "sqs_queues", timeout)
    except SQSError as error:
        return replace(taken, notes=(*taken.notes, f"the workers cannot be asked: {error}"))
    notes = () if workers else (f"no worker answered within {timeout:g} s.",)
    return replace(taken, workers=workers, notes=(*taken.notes, *notes))


def _show_json(taken: Status) -> None:
    show_json(taken.as_json())


def _show(taken: Status) -> None:
    show_table(QUEUE_COLUMNS, [_queue_row(each) for each in taken.queues])
    if taken.workers:
        click.echo()
        show_table(WORKER_COLUMNS, [_worker_row(node, answer) for node, answer in taken.workers.items()])
    for note in taken.notes:
        click.echo(f"\n{note}")


def _queue_row(queue: QueueStatus) -> list[Any]:
    depth, age = queue.depth, queue.depth.oldest_age_seconds
    oldest = None if age is None else duration_text(age)
    counts = [depth.visible, depth.in_flight, depth.delayed]
    return [depth.queue, *counts, oldest, depth.dead_letters, queue.requests_a_day, queue.usd_a_day]


def _worker_row(node: str, answer: Mapping[str, Any]) -> list[Any]:
    if "queues" not in answer:  # a worker of another transport, or an older one
        return [node, None, None, None, answer.get("error")]
    queues: Mapping[str, Mapping[str, Any]] = answer["queues"]
    held = sum(queue["held"] for queue in queues.values())
    paused = [_paused(name, queue) for name, queue in queues.items() if queue["paused"]]
    return [node, answer["pool"], f"{answer['busy']}/{answer['slots']}", held, ", ".join(paused) or None]


def _paused(name: str, queue: Mapping[str, Any]) -> str:
    left = queue["seconds_left"]
    return name if left is None else f"{name} ({duration_text(left)} left)"
