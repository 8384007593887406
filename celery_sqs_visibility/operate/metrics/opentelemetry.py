"""Export of the series to OpenTelemetry's metrics API, an optional dependency, under its names.

Counters and gauges are read when a reader of the SDK asks. The API has no histogram that can be read, and
recording a value takes longer than all other work for an event. So only the histograms that the conventions
require are recorded, many values in a row; the others are exported as counters of buckets and sums, as in
Prometheus.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import accumulate
from typing import Any, Final

from opentelemetry.context import get_current
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from celery_sqs_visibility.operate.metrics.names import METRICS, Kind, Metric
from celery_sqs_visibility.operate.metrics.series import Counter, Histogram, Labels, ReadGauge, Series

#: How many values are recorded in a row. This takes less than half the time: between two steps of a worker
#: the SDK's code leaves the processor's cache.
BATCH: Final = 100

#: The label of a bucket, its upper bound.
BOUND: Final = "bound"

#: Labels that have an attribute in the conventions, and their attributes.
ATTRIBUTES: Final = {
    "queue": "messaging.destination.name",
    "task": "celery.task_name",
    "action": "messaging.operation.name",
    "outcome": "celery_sqs.outcome",
    "state": "celery_sqs.state",
    "kind": "celery_sqs.kind",
    "cause": "celery_sqs.cause",
    "brake": "celery_sqs.brake",
    BOUND: "le",
}

#: Outcomes that are not errors.
FINE: Final = frozenset(
    {"ok", "succeeded", "released", "skipped", "delayed", "discarded", "full", "partial", "empty"}
)

#: The type of an operation, by the beginning of SQS's action.
OPERATION_TYPES: Final = {"Receive": "receive", "Delete": "settle", "Change": "settle", "Send": "send"}


@cache
def attributes(metric: Metric, labels: Labels, more_labels: tuple[str, ...] = ()) -> dict[str, str]:
    """The attributes of a point."""
    found = {"messaging.system": "aws_sqs", **metric.operation}
    for name, value in zip((*metric.labels, *more_labels), labels, strict=True):
        found[ATTRIBUTES[name]] = value
        if name == "outcome" and value not in FINE:
            found["error.type"] = value
        if name == "action" and (kind := _operation_type(value)):
            found["messaging.operation.type"] = kind
    return found


def _operation_type(action: str) -> str | None:
    if not action.endswith(("Message", "MessageBatch", "VisibilityBatch")):
        return None
    return next((kind for verb, kind in OPERATION_TYPES.items() if action.startswith(verb)), None)


class Values:
    """Values of histograms that wait to be recorded. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, record: Callable[[], None]) -> None:
        """Record a value, at once if there is a span, because an exemplar refers to the current one."""
        if get_current():
            record()
            return
        self._waiting.append(record)
        if len(self._waiting) >= BATCH:
            self.record()

    def record(self) -> None:
        """Record the waiting values."""
        while True:
            try:
                record = self._waiting.popleft()
            except IndexError:  # no more are waiting
                return
            record()


def export(series: Series, meter: Meter | None = None) -> Callable[[], None]:
    """Create the instruments, for this process only: a forked child exports nothing.

    Returns:
        A function that ends the recording; the API can't remove instruments.
    """
    meter = meter or get_meter("celery_sqs_visibility")
    values = Values()
    observable = partial(_observable, values)
    for metric, counter in series.counters.items():
        observable(meter.create_observable_counter, metric, partial(_items, counter))
    for metric, histogram in series.histograms.items():
        if metric.is_conventional:
            histogram.record = _recorder(values, metric, meter)
        else:
            create = meter.create_observable_counter
            observable(create, metric, partial(_buckets, histogram), ".bucket", BOUND)
            observable(create, metric, partial(_sums, histogram), ".sum")
    for metric in METRICS:
        if metric.kind is Kind.GAUGE:
            observable(meter.create_observable_gauge, metric, partial(series.read_gauge, metric))

    def stop() -> None:
        for histogram in series.histograms.values():
            histogram.record = None
        values.record()

    return stop


def _items(counter: Counter) -> Iterable[tuple[Labels, float]]:
    return counter.read().items()


def _buckets(histogram: Histogram) -> Iterator[tuple[Labels, float]]:
    for labels, (counts, _) in histogram.read().items():
        for bound, count in zip((*histogram.bounds, math.inf), accumulate(counts), strict=True):
            yield (*labels, f"{bound:g}"), count


def _sums(histogram: Histogram) -> list[tuple[Labels, float]]:
    return [(labels, total) for labels, (_, total) in histogram.read().items()]


def _recorder(values: Values, metric: Metric, meter: Meter) -> Callable[[Labels, float], None]:
    histogram = meter.create_histogram(
        metric.otel, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
    )

    def record(labels: Labels, value: float) -> None:
        values.add(partial(histogram.record, value, attributes(metric, labels)))

    return record


def _observable(
    values: Values,
    create: Callable[..., Any],
    metric: Metric,
    read: ReadGauge,
    suffix: str = "",
    *more_labels: str,
) -> None:
    pid = os.getpid()

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        if os.getpid() == pid:
            values.record()  # readers ask observable instruments first
            for labels, value in read():
                yield Observation(value, attributes(metric, labels, more_labels))

    unit = "1" if more_labels else metric.unit
    create(metric.otel + suffix, callbacks=[observe], unit=unit, description=metric.help)
