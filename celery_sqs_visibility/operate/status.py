"""`celery -A proj sqs status`: queues from SQS and CloudWatch, workers by remote control."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click
from celery import Celery

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSVisibilityError, UnavailableError
from celery_sqs_visibility.operate.app_queues import QueueDepth, counted_queues, queue_depths, queue_names
from celery_sqs_visibility.operate.figures import duration_text, usd_of
from celery_sqs_visibility.operate.invocation import (
    CONTROL_IS_OFF,
    app_of,
    ask,
    broker_of,
    is_controlled,
    json_option,
    say,
    show_json,
    show_table,
    timeout_option,
)
from celery_sqs_visibility.operate.queue_metrics import Measured, QueueMetrics, metrics_of
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES, MANY_IN_FLIGHT_MESSAGES
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: CloudWatch has a value a minute, and to ask for it costs money.
METRICS_SECONDS: Final = 60

ESTIMATE: Final = (
    "requests and USD a day are an estimate, of CloudWatch's last 24 hours: a request for each empty "
    "receive, and for each message sent, received and deleted. Batches make it less, extensions more; prices "
    "of us-east-1."
)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A row: the depth of a queue, and an estimate of its requests a day and their cost; `None`: unknown.

    Where SQS does not answer, the depth may be the last one that was known, as old as `age_seconds`.
    """

    depth: QueueDepth
    requests_a_day: int | None = None
    usd_a_day: float | None = None
    age_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Its figures, by name."""
        depth = self.depth
        return {
            "queue": depth.queue,
            "visible": depth.visible,
            "in_flight": depth.in_flight,
            "delayed": depth.delayed,
            "oldest_age_seconds": depth.oldest_age_seconds,
            "dead_letters": depth.dead_letters,
            "requests_a_day": self.requests_a_day,
            "usd_a_day": self.usd_a_day,
            "age_seconds": round(self.age_seconds, 1),
            "error": str(depth.error) if depth.error else None,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The queues, the workers' answers by node and how old these are, and sentences about what is missing."""

    queues: list[QueueStatus]
    workers: Mapping[str, Any] = field(default_factory=dict)
    workers_age_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All figures and notes, by name."""
        queues = [each.as_json() for each in self.queues]
        return {
            "queues": queues,
            "workers": dict(self.workers),
            "workers_age_seconds": round(self.workers_age_seconds, 1),
            "notes": list(self.notes),
        }

    @property
    def exit_status(self) -> int:
        """77 if a permission is missing, 69 if SQS does not answer, 1 if a queue is not counted otherwise."""
        errors = [each.depth.error for each in self.queues if each.depth.visible is None]
        for kind, status in ((AccessDeniedError, 77), (UnavailableError, 69)):
            if any(isinstance(error, kind) for error in errors):
                return status
        return 1 if errors else 0


class QueueReport:
    """Takes the status of a broker's queues. Any thread, one at a time."""

    def __init__(
        self, context: BrokerContext, names: Sequence[str], metrics: QueueMetrics, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._context = context
        self._names = names
        self._metrics = metrics
        self._clock = clock
        self._measured: tuple[Measured, Measured] = Measured({}), Measured({})
        self._measured_at: float | None = None
        self._counted: dict[str, tuple[float, QueueStatus]] = {}  # since when, by Celery's name

    def take(self) -> Status:
        """Ask SQS, and CloudWatch if its last answer is a minute old.

        A queue that SQS does not count now keeps its last status.
        """
        depths = queue_depths(self._context, self._names)
        ages, requests = self._measure(counted_queues(self._context, depths))
        rows = []
        for depth in depths:
            aged = replace(depth, oldest_age_seconds=ages.figures.get(depth.queue))
            rows.append(self._or_as_before(_row(aged, requests.figures)))
        errors = [depth.error for depth in depths] + [ages.error, requests.error]
        notes = [
            *filter(None, map(_near_quota, depths)),
            *([ESTIMATE] if requests.figures else []),
            *dict.fromkeys(str(error) for error in errors if error is not None),
        ]
        return Status(rows, notes=tuple(notes))

    def _or_as_before(self, row: QueueStatus) -> QueueStatus:
        queue, now = row.depth.queue, self._clock.monotonic()
        if row.depth.visible is not None:
            self._counted[queue] = now, row
        if row.depth.visible is not None or queue not in self._counted:
            return row
        since, before = self._counted[queue]
        return replace(before, depth=replace(before.depth, error=row.depth.error), age_seconds=now - since)

    def _measure(self, queues: Sequence[Queue]) -> tuple[Measured, Measured]:
        now = self._clock.monotonic()
        if queues and (self._measured_at is None or now - self._measured_at >= METRICS_SECONDS):
            self._measured = self._metrics.oldest_ages(queues), self._metrics.requests_of_a_day(queues)
            self._measured_at = now
        return self._measured


def _row(depth: QueueDepth, requests: Mapping[str, float]) -> QueueStatus:
    count = requests.get(depth.queue)
    if count is None:
        return QueueStatus(depth)
    return QueueStatus(depth, round(count), round(usd_of(count, depth.queue), 4))


def _near_quota(depth: QueueDepth) -> str | None:
    """A sentence about a queue near its quota of messages in flight."""
    if (depth.in_flight or 0) < MANY_IN_FLIGHT_MESSAGES:
        return None
    return (
        f"queue {depth.queue!r} has {depth.in_flight:,} messages in flight: beyond about "
        f"{IN_FLIGHT_MESSAGES:,} SQS hands out none, without an error, and tasks wait. Workers hold them, or "
        "have hidden them for a retry or an ETA."
    )


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
        workers = WorkerAnswers(app, timeout)

        def take() -> Status:
            return workers.add_to(report.take())

        def show(taken: Status) -> None:
            if as_json:
                show_json(taken.as_json())
            else:
                show_status(taken)

        if seconds is None:
            taken = take()
            show(taken)
            ctx.exit(taken.exit_status)
        watch(take, show, seconds)


def watch(take: Callable[[], Status], show: Callable[[Status], None], seconds: float) -> None:
    """Show the status every so many seconds, until Ctrl-C."""
    # On a terminal the cursor goes to the top left, and each table takes the place of the last.
    before_each, before_next = ("\x1b[H\x1b[J", "") if sys.stdout.isatty() else ("", "\n")
    try:
        while True:
            taken = take()
            click.echo(before_each, nl=False)
            show(taken)
            before_each = before_each or before_next
            threading.Event().wait(seconds)
    except KeyboardInterrupt:
        return


class WorkerAnswers:
    """The answers of the app's workers, or the last ones while they cannot be asked. The command's thread.

    Args:
        app: whose workers.
        timeout: seconds to wait for answers.
        clock: the monotonic clock.
    """

    def __init__(self, app: Celery, timeout: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._timeout = timeout
        self._clock = clock
        self._answers: tuple[float, dict[str, Any]] = 0.0, {}  # since when, and by node

    def add_to(self, taken: Status) -> Status:
        """Add the workers to a status, or a sentence that says why they are missing or old."""
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


def show_status(taken: Status) -> None:
    """Print tables of queues and workers, and the notes."""
    columns = ["queue", "visible", "in flight", "delayed", "oldest", "dead", "req/day", "USD/day"]
    show_table(columns, [_queue_row(each) for each in taken.queues])
    if taken.workers:
        say()
        columns = ["worker", "pool", "slots busy", "held", "hidden", "paused"]
        show_table(columns, [_worker_row(node, answer) for node, answer in taken.workers.items()])
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
        return [node, None, None, None, None, answer.get("error")]
    queues: Mapping[str, Mapping[str, Any]] = answer["queues"]
    held, hidden = (sum(queue.get(each, 0) for queue in queues.values()) for each in ("held", "hidden"))
    paused = [_paused(name, queue) for name, queue in queues.items() if queue["paused"]]
    tasks: Mapping[str, float | None] = answer.get("paused_tasks", {})
    paused += [_paused(f"task {name}", {"seconds_left": left}) for name, left in tasks.items()]
    return [
        node,
        answer["pool"],
        f"{answer['busy']}/{answer['slots']}",
        held,
        hidden,
        ", ".join(paused) or None,
    ]


def _paused(name: str, queue: Mapping[str, Any]) -> str:
    left = queue["seconds_left"]
    said = [f"{duration_text(left)} left"] if left is not None else []
    said += ["kept"] if queue.get("kept") else []
    return f"{name} ({', '.join(said)})" if said else name
