"""What `celery -A proj sqs status` shows: queues from SQS and CloudWatch, workers by remote control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSError
from celery_sqs_visibility.operate.figures import usd_of
from celery_sqs_visibility.operate.queue_depths import QueueDepth, found_queues, queue_depths
from celery_sqs_visibility.operate.queue_metrics import Measured, QueueMetrics
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
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
        """All of it."""
        queues = [each.as_json() for each in self.queues]
        return {
            "queues": queues,
            "workers": dict(self.workers),
            "workers_age_seconds": round(self.workers_age_seconds, 1),
            "notes": list(self.notes),
        }

    @property
    def exit_status(self) -> int:
        """77 where a right is missing to count a queue, 1 where it cannot be counted for another reason."""
        errors = [each.depth.error for each in self.queues if each.depth.visible is None]
        if any(isinstance(error, AccessDeniedError) for error in errors):
            return 77
        return 1 if errors else 0


class QueueReport:
    """The queues of a broker, as they are now, as often as `take` is called; any thread, one at a time."""

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
        """Ask SQS, and CloudWatch where its last answer is a minute old.

        A queue that SQS counted before, and does not count now, is as it was.
        """
        depths = queue_depths(self._context, self._names)
        ages, requests = self._measure(found_queues(self._context, depths))
        rows = [
            self._or_as_before(_row(depth.with_age(ages.figures.get(depth.queue)), requests.figures))
            for depth in depths
        ]
        errors = [depth.error for depth in depths] + [ages.error, requests.error]
        return Status(rows, notes=_sentences(errors, estimated=bool(requests.figures)))

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


def _sentences(errors: Sequence[SQSError | None], *, estimated: bool) -> tuple[str, ...]:
    sentences = [str(error) for error in errors if error is not None]
    return tuple(dict.fromkeys([*([ESTIMATE] if estimated else []), *sentences]))
