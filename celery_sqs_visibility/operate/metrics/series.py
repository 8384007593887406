"""Series of numbers in memory, read by exporters. Counting an event costs an addition."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

from celery_sqs_visibility.operate.metrics.names import METRICS, Kind, Metric

#: Values of a metric's labels, in order.
Labels = tuple[str, ...]

#: Reads a gauge's values.
ReadGauge = Callable[[], Iterable[tuple[Labels, float]]]


class Counter:
    """A number that only grows. Any thread."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._values: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add `amount`."""
        with self._lock:
            self._values[labels] += amount

    def read(self) -> dict[Labels, float]:
        """The sums so far."""
        with self._lock:
            return dict(self._values)


class Histogram:
    """Values in buckets, the last of which has no bound. Any thread.

    Attributes:
        bounds: of all buckets except the last.
        record: called with each value, because OpenTelemetry has no instrument that reads buckets.
    """

    def __init__(self, bounds: tuple[float, ...], lock: threading.Lock) -> None:
        self.bounds = bounds
        self._lock = lock
        self._counts: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._totals: defaultdict[Labels, float] = defaultdict(float)
        self.record: Callable[[Labels, float], None] | None = None

    def observe(self, labels: Labels, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[labels][bisect_left(self.bounds, value)] += 1
            self._totals[labels] += value
        if self.record is not None:
            self.record(labels, value)

    def read(self) -> dict[Labels, tuple[list[int], float]]:
        """The numbers of values by bucket, and the sum of all values."""
        with self._lock:
            return {labels: (list(counts), self._totals[labels]) for labels, counts in self._counts.items()}


class Series:
    """The series of all metrics of a worker.

    Attributes:
        counters, histograms: by metric.
        gauges: functions that read the gauges, by metric.
    """

    def __init__(self) -> None:
        lock = threading.Lock()  # guards all numbers
        self.counters = {one: Counter(lock) for one in METRICS if one.kind is Kind.COUNTER}
        self.histograms = {one: Histogram(one.buckets, lock) for one in METRICS if one.kind is Kind.HISTOGRAM}
        self.gauges: dict[Metric, ReadGauge] = {}

    def read_gauge(self, metric: Metric) -> list[tuple[Labels, float]]:
        """The gauge's current values; empty if unknown."""
        read = self.gauges.get(metric)
        return [] if read is None else list(read())
