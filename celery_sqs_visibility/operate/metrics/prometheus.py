"""Export of the series to `prometheus_client`, an optional dependency, whenever a scraper asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.series import Series


class Prometheus(Collector):
    """The series, in the registry that also has the app's own metrics in this process. Any thread."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, series: Series, registry: CollectorRegistry = REGISTRY) -> None:
        self._series = series
        self._registry = registry
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Returns nothing, so that the registry does not collect to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics that have values."""
        for metric, counter in self._series.counters.items():
            counters = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in counter.read().items():
                counters.add_metric(labels, value)
            yield counters
        for metric, histogram in self._series.histograms.items():
            histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            bounds = [*map(str, map(float, metric.buckets)), "+Inf"]
            for labels, (counts, total) in histogram.read().items():
                buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
                histograms.add_metric(labels, buckets, total)
            yield histograms
        for metric in names.METRICS:
            if metric.kind is names.Kind.GAUGE:
                gauges = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in self._series.read_gauge(metric):
                    gauges.add_metric(labels, value)
                yield gauges

    def exposition(self) -> str:
        """The whole registry, in the text format."""
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        """Remove the series from the registry."""
        self._registry.unregister(self)
