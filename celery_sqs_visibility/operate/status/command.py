"""`celery -A proj sqs status`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import click
from celery import Celery

from celery_sqs_visibility.errors import SQSVisibilityError
from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import (
    app_of,
    broker_of,
    json_option,
    say,
    show_json,
    show_table,
)
from celery_sqs_visibility.operate.nodes import CONTROL_IS_OFF, ask, is_controlled, timeout_option
from celery_sqs_visibility.operate.queue_metrics import metrics_of
from celery_sqs_visibility.operate.status.report import QueueReport, QueueStatus, Status
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

#: The cursor to the top left, and nothing below it: the next table takes the place of the last.
REDRAW: Final = "\x1b[H\x1b[J"

QUEUE_COLUMNS: Final = [
    "queue",
    "visible",
    "in flight",
    "delayed",
    "oldest",
    "dead",
    "req/day",
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

        workers = Workers(app, timeout)

        def take() -> Status:
            return workers.add_to(report.take())

        show = _show_json if as_json else _show
        if seconds is None:
            taken = take()
            show(taken)
            ctx.exit(taken.exit_status)
        _watch(take, show, seconds)


def _watch(take: Callable[[], Status], show: Callable[[Status], None], seconds: float) -> None:
    before_each, before_next = (REDRAW, "") if sys.stdout.isatty() else ("", "\n")
    try:
        while True:
            taken = take()
            click.echo(before_each, nl=False)
            show(taken)
            before_each = before_each or before_next
            threading.Event().wait(seconds)
    except KeyboardInterrupt:
        return


class Workers:
    """Asks the app's workers; while they cannot be asked, they are as they were. The command's thread.

    Args:
        app: whose workers.
        timeout: for how many seconds answers are waited for.
        clock: the monotonic clock.
    """

    def __init__(self, app: Celery, timeout: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._timeout = timeout
        self._clock = clock
        self._answers: tuple[float, dict[str, Any]] = 0.0, {}  # since when, and by node

    def add_to(self, taken: Status) -> Status:
        """A status with the workers, or with a sentence that says why they are missing, or old."""
        if not is_controlled(self._app):
            return replace(taken, notes=(*taken.notes, f"the workers are not asked: {CONTROL_IS_OFF}."))
        try:
            workers = ask(self._app, "sqs_queues", self._timeout)
        except (SQSVisibilityError, OSError) as error:
            return self._as_before(taken, f"the workers cannot be asked: {error}")
        self._answers = self._clock.monotonic(), workers
        notes = () if workers else (f"no worker answered within {self._timeout:g} s.",)
        return replace(taken, workers=workers, notes=(*taken.notes, *notes))

    def _as_before(self, taken: Status, why: str) -> Status:
        since, workers = self._answers
        age = self._clock.monotonic() - since if workers else 0.0
        return replace(taken, workers=workers, workers_age_seconds=age, notes=(*taken.notes, why))


def _show_json(taken: Status) -> None:
    show_json(taken.as_json())


def _show(taken: Status) -> None:
    show_table(QUEUE_COLUMNS, [_queue_row(each) for each in taken.queues])
    if taken.workers:
        say()
        show_table(WORKER_COLUMNS, [_worker_row(node, answer) for node, answer in taken.workers.items()])
    for note in (*_ages(taken), *taken.notes):
        say(f"\n{note}")


def _ages(taken: Status) -> Iterator[str]:
    old = {each.depth.queue: each.age_seconds for each in taken.queues if each.age_seconds}
    if taken.workers_age_seconds:
        old["the workers"] = taken.workers_age_seconds
    if old:
        yield "old figures: " + ", ".join(f"{name} {duration_text(age)} ago" for name, age in old.items())


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
