"""All metrics, in one table: names, units, labels, buckets. docs/metrics.md is generated from it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final


class Kind(enum.Enum):
    """Kind of a metric: it only grows, is set, or is counted in buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


#: Upper bounds in seconds. Those of requests are the ones that OpenTelemetry's conventions recommend.
REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
TASK_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200)
LAG_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric.

    Attributes:
        name: in Prometheus, without a counter's suffix `_total`.
        otel: the name in OpenTelemetry.
        unit: in OpenTelemetry, by UCUM.
        labels: names, in order; only task, queue, brake, outcome, action, kind, cause and state are used.
        buckets: upper bounds of a histogram, without infinity.
        operation: OpenTelemetry's name of the messaging operation, if no label has it.
    """

    kind: Kind
    name: str
    otel: str
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    operation: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_conventional(self) -> bool:
        """Whether it is in OpenTelemetry's semantic conventions."""
        return self.otel.startswith("messaging.")

    @property
    def exposed(self) -> str:
        """Its name in a Prometheus query; for a histogram, the beginning of its series' names."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def _metric(
    kind: Kind,
    name: str,
    unit: str,
    labels: str,
    text: str,
    otel: str = "",
    operation: str = "",
    buckets: tuple[float, ...] = (),
) -> Metric:
    otel = otel or f"celery_sqs.{name.removesuffix('_seconds')}"
    told = {"messaging.operation.name": operation} if operation else {}
    return Metric(kind, f"celery_sqs_{name}", otel, unit, tuple(labels.split()), text, buckets, told)


_counter = partial(_metric, Kind.COUNTER)
_gauge = partial(_metric, Kind.GAUGE)


def _histogram(
    name: str, labels: str, text: str, buckets: tuple[float, ...], otel: str = "", operation: str = ""
) -> Metric:
    return _metric(Kind.HISTOGRAM, name, "s", labels, text, otel, operation, buckets)


TASKS: Final = _counter("tasks", "{task}", "task queue outcome", "Messages of tasks, by outcome.")
ATTEMPTS: Final = _counter("attempts", "{attempt}", "task queue", "Runs started.")
RECEIVED: Final = _counter(
    "messages_received",
    "{message}",
    "queue",
    "Messages that the worker received.",
    "messaging.client.consumed.messages",
    "receive",
)
DEAD_LETTERED: Final = _counter(
    "dead_lettered", "{message}", "task queue", "Messages that the worker moved to a dead-letter queue."
)
EXTENSIONS: Final = _counter("extensions", "{message}", "queue", "Visibility timeouts extended.")
LOST: Final = _counter("messages_lost", "{message}", "queue", "Held messages that another worker may have.")
RECEIVES: Final = _counter(
    "receives", "{request}", "queue outcome", "Answered receives: full, partial or empty."
)
EVENTS_DROPPED: Final = _counter(
    "monitor_events_dropped", "{event}", "", "Events of Celery that a monitor will miss."
)
REPLIES_DROPPED: Final = _counter(
    "control_replies_dropped", "{reply}", "", "Replies to commands that did not reach their caller."
)
COST: Final = _counter("cost_usd", "USD", "queue", "The price of the requests.")
REQUESTS: Final = _histogram(
    "request_seconds",
    "action queue outcome",
    "Duration of requests: ok, or the error's code.",
    REQUEST_SECONDS,
    "messaging.client.operation.duration",
)
RUNS: Final = _histogram(
    "run_seconds",
    "task queue outcome",
    "Duration of runs.",
    TASK_SECONDS,
    "messaging.process.duration",
    "process",
)
START_LATENESS: Final = _histogram(
    "start_lateness_seconds",
    "queue kind",
    "How late runs began: first, after an eta, or as a retry.",
    TASK_SECONDS,
)
HELD_TIME: Final = _histogram(
    "in_flight_seconds",
    "queue",
    "From the receive of a message to the decision about it.",
    TASK_SECONDS,
)
SETTLE_TIME: Final = _histogram("settle_seconds", "queue", "From that decision to SQS's answer.", LAG_SECONDS)
HEARTBEAT_LAG: Final = _histogram("heartbeat_lag_seconds", "queue", "How late extensions were.", LAG_SECONDS)
HIDDEN: Final = _gauge(
    "messages_hidden", "{message}", "queue cause", "Messages that the worker has hidden, not yet back."
)
SLOTS: Final = _gauge("slots", "{task}", "", "Tasks that the worker can run at once.")
SLOTS_BUSY: Final = _gauge("slots_busy", "{task}", "", "Tasks that the worker is running.")
HELD: Final = _gauge("messages_held", "{message}", "", "Messages that the worker hides from others.")
LAST_RECEIVE: Final = _gauge(
    "last_receive_timestamp_seconds",
    "s",
    "queue",
    "When SQS last answered a receive, in seconds since the epoch.",
)
INTERVAL_MAX: Final = _gauge(
    "polling_interval_max_seconds",
    "s",
    "queue",
    "The option `polling_interval_max`: the longest sleep between polls of an idle queue.",
)
PAUSED: Final = _gauge(
    "queue_paused", "1", "queue", "1 if the worker has paused the queue, 0 while it polls."
)
FULL: Final = _gauge(
    "queue_full",
    "1",
    "queue",
    "1 if the worker has reached the queue's `max_running`, else 0.",
)
BRAKE_ON: Final = _gauge(
    "brake_on", "1", "brake", "1 while the worker's brake of that name lets its tasks wait, else 0."
)
BRAKE_WAITING: Final = _gauge(
    "brake_waiting", "{message}", "brake", "Messages that the worker holds for the brake."
)
QUEUE_MESSAGES: Final = _gauge(
    "queue_messages",
    "{message}",
    "queue state",
    "Messages in the queue: visible, in_flight or delayed. Sampled.",
)
OLDEST_AGE: Final = _gauge(
    "queue_oldest_age_seconds", "s", "queue", "Age of the oldest message. Sampled, from CloudWatch."
)
DEAD_LETTERS: Final = _gauge(
    "queue_dead_letters", "{message}", "queue", "Messages in the queue's dead-letter queue. Sampled."
)

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
