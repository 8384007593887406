"""The options of a worker's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_fields import option
from celery_sqs_visibility.policy.option_parsers import Seconds

PROMETHEUS: Final = "prometheus"
OPENTELEMETRY: Final = "opentelemetry"
EMF: Final = "emf"
EXPORTERS: Final = (PROMETHEUS, OPENTELEMETRY, EMF)

#: How often queues are counted where workers can agree on one that does, and where each counts.
SAMPLE_SECONDS: Final = 60.0
SAMPLE_ALONE_SECONDS: Final = 300.0


class ExporterNames:
    """Some of the exporters, as a list or as text with commas."""

    bounds = ", ".join(f"`{name!r}`" for name in EXPORTERS)

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        """Their names."""
        names = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(names, list | tuple | set) or not set(names) <= set(EXPORTERS):
            raise OptionError(f"expected {name} to be some of {', '.join(EXPORTERS)}, got {value!r}")
        return tuple(each for each in EXPORTERS if each in names)


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """Who gets a worker's metrics, and whether it counts its queues."""

    metrics: tuple[str, ...] | None = option(
        None,
        ExporterNames(),
        "Who gets the metrics of a worker: see [metrics](metrics.md). `[]` is nobody.",
        "['prometheus'] where `http_port` is set and prometheus_client is installed",
    )
    sample_queues: float | None = option(
        None,
        Seconds(10, 3600, zero=True),
        "How often a worker that has metrics asks SQS how many messages its queues have, and CloudWatch how "
        "old the oldest is; 0: never. Where `exclusive_store` is set, one worker asks for all; without it "
        "each does.",
        f"{SAMPLE_SECONDS:g} with `exclusive_store`, else {SAMPLE_ALONE_SECONDS:g}",
    )

    @property
    def has_metrics(self) -> bool:
        """Whether anybody is to get them; over HTTP where `http_port` alone is set, if that can be."""
        http_port: int | None = self.http_port  # type: ignore[attr-defined]
        return bool(self.metrics) or (self.metrics is None and http_port is not None)

    @property
    def sample_seconds(self) -> float:
        """How often a worker that has metrics counts its queues; 0: never."""
        agree = self.exclusive_store is not None  # type: ignore[attr-defined]
        if self.sample_queues is None:
            return SAMPLE_SECONDS if agree else SAMPLE_ALONE_SECONDS
        return self.sample_queues

    @property
    def samples_queues(self) -> bool:
        """Whether a worker counts its queues."""
        return self.has_metrics and self.sample_seconds > 0
