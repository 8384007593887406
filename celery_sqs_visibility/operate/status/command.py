"""`celery -A proj sqs status`: the command, and how it prints the status."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import chain, repeat

import click

from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.invocation import (
    app_of,
    broker_of,
    json_option,
    say,
    show_json,
    show_table,
    timeout_option,
)
from celery_sqs_visibility.operate.queue_metrics import metrics_of
from celery_sqs_visibility.operate.status.report import QueueReport, Status, WorkerAnswers
from celery_sqs_visibility.operate.status.tables import queue_tables, sentences, worker_table
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep


@click.command()
@click.option(
    "--watch",
    "seconds",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="[SECONDS]",
    help="Show it again every SECONDS (2), until Ctrl-C; on a terminal with the extra `watch` as a board.",
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
    draw = None if as_json or seconds is None else _board(colours=ctx.color is not False)
    with broker_of(app) as context:
        report = QueueReport(context, queue_names(app, context.options), metrics_of(context))
        workers = WorkerAnswers(app, timeout, SYSTEM_CLOCK, with_runs=draw is not None)

        def take() -> Status:
            taken = workers.add_to(report.take())
            if seconds is None:
                return taken
            return replace(taken, notes=(*taken.notes, report.cost(seconds, workers.requests)))

        def show(taken: Status) -> None:
            if as_json:
                show_json(taken.as_json())
            else:
                show_status(taken)

        if seconds is None:
            taken = take()
            show(taken)
            ctx.exit(taken.exit_status)
        with draw or nullcontext(framed(show)) as shown:
            watch(take, shown, seconds)


def _board(*, colours: bool) -> AbstractContextManager[Callable[[Status], None]] | None:
    """Draw the status on a terminal; `None` without a terminal, or without rich."""
    if not sys.stdout.isatty():
        return None
    with suppress(ImportError):
        from celery_sqs_visibility.operate.status import board  # noqa: PLC0415 - rich is an extra

        if console := board.new_console(colours=colours):
            return board.drawn_on(console)
    return None


def watch(take: Callable[[], Status], show: Callable[[Status], None], seconds: float) -> None:
    """Show the status at that interval, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            show(take())
            sleep(seconds)


def framed(show: Callable[[Status], None]) -> Callable[[Status], None]:
    """Wrap `show`: on a terminal each status replaces the one before."""
    before = repeat("\x1b[H\x1b[J") if sys.stdout.isatty() else chain([""], repeat("\n"))

    def show_next(taken: Status) -> None:
        click.echo(next(before), nl=False)
        show(taken)

    return show_next


def show_status(taken: Status) -> None:
    """Print tables of queues and workers, and sentences about them."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else float("inf")
    tables = queue_tables(taken, room)
    if taken.workers or taken.silent:
        tables.append(worker_table(taken))
    for number, table in enumerate(tables):
        if number:
            say()
        show_table(table.columns, table.rows)
    for sentence in sentences(taken):
        say(f"\n{sentence}")
