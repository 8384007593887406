"""Imported by workers of `listening.py`: OpenTelemetry's SDK as an app sets it up, but exporting to nobody.

Where the environment names a file, the CPU time that metrics' listeners take is written there: microseconds a
task, where they are called, with all that the worker does in between.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from pathlib import Path
from time import thread_time_ns

from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from tasks import LISTENED_VARIABLE

from celery_sqs_visibility.events import Started, subscribe
from celery_sqs_visibility.operate.metrics import recorder

exporter = ConsoleMetricExporter(open(os.devnull, "w"))  # noqa: PTH123, SIM115 - to the end of the process
set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))

spent = defaultdict(list)  # nanoseconds of each call, by the kind of its event


def timed(listen):
    began = thread_time_ns()
    listen()
    return thread_time_ns() - began


def subscribe_timed(listener, kind):
    def listen(event):
        thread_time_ns()  # so that the clock's own code is in the cache
        spent[kind].append(timed(lambda: listener(event)) - NOTHING)
        if kind is Started and len(spent[kind]) % 500 == 0:
            tell(len(spent[kind]))

    return subscribe(listen, kind)


def tell(tasks):
    total = sum(map(sum, spent.values()))
    Path(os.environ[LISTENED_VARIABLE]).write_text(str(total / tasks / 1000))


NOTHING = statistics.median(timed(lambda: None) for _ in range(1000))

if LISTENED_VARIABLE in os.environ:
    recorder.subscribe = subscribe_timed
