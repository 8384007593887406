"""What metrics cost a worker's main process, a task.

    python benchmarks/listening.py [--worker]

The listeners alone, for the events of a short task, with these events made and told; with `--worker` also the
CPU of real workers with and without metrics, in turn, which takes a minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from consume import on_sqs
from contenders import OURS, Contender
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from servers import CREDENTIALS, sqs_server

from celery_sqs_visibility import events, measurements
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.operate.metrics import opentelemetry
from celery_sqs_visibility.operate.metrics.recorder import Recorder
from celery_sqs_visibility.operate.metrics.series import Series

TASKS = 20_000
ROUNDS = 7

#: CPU of a worker's main process for one short task: `benchmarks/consume.py`.
MAIN_MICROSECONDS = 600


def one_task(facts):
    """The events of a task that succeeds, in batches of ten: a fifth of a request each."""
    emit(events.Received(facts))
    emit(events.Started(facts))
    emit(events.Finished(facts))
    if events.has_listener(measurements.DeliveryEnded):
        emit(measurements.DeliveryEnded(facts, "succeeded", 0.2, 0.1))
    emit(events.Deleted(facts))
    if events.has_listener(measurements.SettlementEnded):
        emit(measurements.SettlementEnded(facts, 0.03))


def one_batch(facts):
    for _ in range(10):
        one_task(facts)
    for action in ("ReceiveMessage", "DeleteMessageBatch"):
        if events.has_listener(events.SQSRequest):
            emit(events.SQSRequest(action, 0.01, "ok", "celery"))
    if events.has_listener(measurements.ReceiveEnded):
        emit(measurements.ReceiveEnded("celery", 10, 10))


def microseconds():
    facts = events.Facts("celery", "m", 1, 1.0, "tasks.add", "t", received=1.0, sent=time.time())
    best = min(timed(facts) for _ in range(ROUNDS))
    return best / TASKS * 1e6


def timed(facts):
    began = time.thread_time()
    for _ in range(TASKS // 10):
        one_batch(facts)
    return time.thread_time() - began


def listeners():
    without = microseconds()
    series = Series()
    Recorder(series, {"tasks.add"}, lambda: {"celery": "celery"}).start()
    show("Prometheus, EMF", microseconds() - without)
    provider = MeterProvider([InMemoryMetricReader()])
    opentelemetry.export(series, provider.get_meter("celery_sqs_visibility"))
    show("OpenTelemetry's SDK", microseconds() - without)


def show(name, spent):
    print(f"{name:24} {spent:5.1f} us a task, {spent / MAIN_MICROSECONDS:.1%} of the main process's CPU")


def workers(rounds=5, tasks=1000):
    contenders = [
        Contender(f"metrics={names}", OURS, {"metrics": names}) for names in ([], ["prometheus", "emf"])
    ]
    os.environ.update(CREDENTIALS)
    spent = {contender.name: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as directory, sqs_server(Path(directory)) as server:
        for _ in range(rounds):
            for contender in contenders:
                found = on_sqs(contender, tasks, 0.01, "prefork", server, Path(directory), played=True)
                spent[contender.name].append(1000 * found["main_CPU_ms_per_task"])
    for name, values in spent.items():
        print(f"{name:40} {statistics.median(values):.0f} us a task ({min(values):.0f} to {max(values):.0f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:  # before anything listens in this process
        workers()
    listeners()
