"""The tasks of `work.py` in a worker that also writes what OpenTelemetry gets, into the file METRICS_FILE.

CloudWatch gets a line every two seconds.
"""

import json
import os
from pathlib import Path

from celery.signals import worker_process_init
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from work import app  # noqa: F401 - Celery looks for it here

from celery_sqs_visibility.operate.metrics import emf

emf.INTERVAL_SECONDS = 2.0


class FileExporter(ConsoleMetricExporter):
    """A line for each export, with the process that made it."""

    def export(self, metrics_data, timeout_millis=10_000, **_):
        with Path(os.environ["METRICS_FILE"]).open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), **json.loads(metrics_data.to_json())}) + "\n")
        return MetricExportResult.SUCCESS


set_meter_provider(MeterProvider([PeriodicExportingMetricReader(FileExporter(), export_interval_millis=500)]))


@worker_process_init.connect
def nothing(**_):
    """Celery's, which has one reader for each process of the pool."""
