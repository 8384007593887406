"""The status of an app's queues and workers as values, and the report that takes that of the queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.operate.app_queues import QueueDepth, counted_queues, queue_depths
from celery_sqs_visibility.operate.figures import usd_of
from celery_sqs_visibility.operate.queue_metrics import METRICS_OF_A_QUEUE, Measured, QueueMetrics
from celery_sqs_visibility.operate.status.work import QueueWork
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES, MANY_IN_FLIGHT_MESSAGES
from celery_sqs_visibility.transport.broker_context import BrokerContext

#: CloudWatch has a value a minute, and to ask for it costs money.
METRICS_SECONDS: Final = 60

#: Two looks tell how fast a queue drains if they are as far apart as this; SQS's counts are approximate.
MIN_LOOKS_SECONDS: Final = 10
MAX_LOOKS_SECONDS: Final = 60

ESTIMATE: Final = (
    "requests and USD a day are an estimate, of CloudWatch's last 24 hours: a request for each empty "
    "receive, and for each message sent, received and deleted. Batches make it less, extensions more; prices "
    "of us-east-1."
)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A row: the depth of a queue, what workers say of it, its rates and its cost; `None`: unknown.

    Where SQS does not answer, the depth may be the last one that was known, as old as `age_seconds`.

    Attributes:
        sent: messages that were sent to it, a second.
        deleted: messages that were deleted, a second.
        change: by how many messages it grows a second; negative while it drains.
    """

    depth: QueueDepth
    requests_a_day: int | None = None
    usd_a_day: float | None = None
    age_seconds: float = 0.0
    work: QueueWork | None = None
    sent: float | None = None
    deleted: float | None = None
    change: float | None = None

    @property
    def messages(self) -> int | None:
        """The messages in it: visible, in flight and delayed ones."""
        depth = self.depth
        if depth.visible is None or depth.in_flight is None or depth.delayed is None:
            return None
        return depth.visible + depth.in_flight + depth.delayed

    @property
    def seconds_to_empty(self) -> float | None:
        """How long until it is empty at the present rate; `None` if unknown, or if it does not drain."""
        messages = self.messages
        if messages and self.change is not None and self.change < 0:
            return messages / -self.change
        return 0.0 if messages == 0 else None

    @property
    def hidden(self) -> int | None:
        """Messages in flight that no worker that answered holds: retries, ETAs, a killed worker's."""
        if self.work is None or self.depth.in_flight is None:
            return None
        return max(0, self.depth.in_flight - self.work.held)

    @property
    def why(self) -> str | None:
        """Why its visible messages wait; `None` if none do, or workers can receive them."""
        return self.work.why_waiting() if self.work is not None and self.depth.visible else None

    def as_json(self) -> dict[str, Any]:
        """Its figures, by name."""
        depth, work = self.depth, self.work
        return {
            "queue": depth.queue,
            "visible": depth.visible,
            "in_flight": depth.in_flight,
            "delayed": depth.delayed,
            "running": work and work.running,
            "held": work and work.held,
            "hidden": self.hidden,
            "oldest_age_seconds": depth.oldest_age_seconds,
            "dead_letters": depth.dead_letters,
            "workers": work and work.workers,
            "slots": work and work.slots,
            "free_slots": work and work.free,
            "waited_seconds": work and work.waited,
            "sent_a_second": self.sent,
            "deleted_a_second": self.deleted,
            "seconds_to_empty": self.seconds_to_empty,
            "requests_a_day": self.requests_a_day,
            "usd_a_day": self.usd_a_day,
            "why": self.why,
            "age_seconds": round(self.age_seconds, 1),
            "error": str(depth.error) if depth.error else None,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The queues, the workers' answers by node and how old these are, and sentences about what is missing.

    Attributes:
        silent: workers that do not answer any more, and for how many seconds.
        runs: what workers say of their longest runs, by node; of silent ones too.
    """

    queues: list[QueueStatus]
    workers: Mapping[str, Any] = field(default_factory=dict)
    workers_age_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All figures and notes, by name."""
        queues = [each.as_json() for each in self.queues]
        return {
            "queues": queues,
            "workers": dict(self.workers),
            "workers_age_seconds": round(self.workers_age_seconds, 1),
            "silent_seconds": {node: round(age, 1) for node, age in self.silent.items()},
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


class Figures(NamedTuple):
    """CloudWatch's, of a minute."""

    ages: Measured = Measured({})
    requests: Measured = Measured({})
    sent: Measured = Measured({})
    deleted: Measured = Measured({})


class QueueReport:
    """Takes the status of a broker's queues. Any thread, one at a time."""

    def __init__(
        self, context: BrokerContext, names: Sequence[str], metrics: QueueMetrics, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._context = context
        self._names = names
        self._metrics = metrics
        self._clock = clock
        self._figures = Figures()
        self._measured_at: float | None = None
        self._counted: dict[str, tuple[float, QueueStatus]] = {}  # since when, by Celery's name
        self._looks: dict[str, deque[tuple[float, int]]] = {}  # when, and the messages then

    def take(self) -> Status:
        """Ask SQS, and CloudWatch if its last answer is a minute old.

        A queue that SQS does not count now keeps its last status.
        """
        depths = queue_depths(self._context, self._names)
        figures = self._measure(counted_queues(self._context, depths))
        rows = []
        for depth in depths:
            aged = replace(depth, oldest_age_seconds=figures.ages.figures.get(depth.queue))
            rows.append(self._or_as_before(self._changing(_row(aged, figures))))
        errors = [*(depth.error for depth in depths), *(each.error for each in figures)]
        notes = [
            *filter(None, map(_near_quota, depths)),
            *([ESTIMATE] if figures.requests.figures else []),
            *dict.fromkeys(str(error) for error in errors if error is not None),
        ]
        return Status(rows, notes=tuple(notes))

    def cost(self, seconds: float, requests_of_workers: int) -> str:
        """What one look every so many seconds costs, as a sentence."""
        requests = 2 * len(self._names) + requests_of_workers
        looks = 86_400 / seconds
        usd = usd_of(requests * looks, "")
        sentence = f"about {requests} requests a refresh, up to {requests * looks:,.0f} a day: USD {usd:.2f}"
        if self._figures.requests.figures:
            per_minute = METRICS_OF_A_QUEUE * len(self._figures.requests.figures)
            sentence += f", and USD {per_minute * 1440 / 100_000:.2f} for CloudWatch"
        return f"every {seconds:g} s {sentence}."

    def _changing(self, row: QueueStatus) -> QueueStatus:
        """Add by how many messages the queue changes: between two looks, or else by CloudWatch."""
        messages, now = row.messages, self._clock.monotonic()
        if messages is None:
            return row
        looks = self._looks.setdefault(row.depth.queue, deque())
        looks.append((now, messages))
        while now - looks[0][0] > MAX_LOOKS_SECONDS:
            looks.popleft()
        since, before = looks[0]
        if now - since >= MIN_LOOKS_SECONDS:
            return replace(row, change=(messages - before) / (now - since))
        if row.sent is None or row.deleted is None:
            return row
        return replace(row, change=row.sent - row.deleted)

    def _or_as_before(self, row: QueueStatus) -> QueueStatus:
        queue, now = row.depth.queue, self._clock.monotonic()
        if row.depth.visible is not None:
            self._counted[queue] = now, row
        if row.depth.visible is not None or queue not in self._counted:
            return row
        since, before = self._counted[queue]
        return replace(before, depth=replace(before.depth, error=row.depth.error), age_seconds=now - since)

    def _measure(self, queues: Sequence[Queue]) -> Figures:
        now = self._clock.monotonic()
        if queues and (self._measured_at is None or now - self._measured_at >= METRICS_SECONDS):
            metrics = self._metrics
            self._figures = Figures(
                metrics.oldest_ages(queues),
                metrics.requests_of_a_day(queues),
                metrics.sent_a_second(queues),
                metrics.deleted_a_second(queues),
            )
            self._measured_at = now
        return self._figures


def _row(depth: QueueDepth, figures: Figures) -> QueueStatus:
    sent, deleted = (each.figures.get(depth.queue) for each in (figures.sent, figures.deleted))
    row = QueueStatus(depth, sent=sent, deleted=deleted)
    count = figures.requests.figures.get(depth.queue)
    if count is None:
        return row
    return replace(row, requests_a_day=round(count), usd_a_day=round(usd_of(count, depth.queue), 4))


def _near_quota(depth: QueueDepth) -> str | None:
    """A sentence about a queue near its quota of messages in flight."""
    if (depth.in_flight or 0) < MANY_IN_FLIGHT_MESSAGES:
        return None
    return (
        f"queue {depth.queue!r} has {depth.in_flight:,} messages in flight: beyond about "
        f"{IN_FLIGHT_MESSAGES:,} SQS hands out none, without an error, and tasks wait. Workers hold them, or "
        "have hidden them for a retry or an ETA."
    )
