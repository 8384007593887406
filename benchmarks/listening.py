"""What metrics cost a worker, a task.

    python benchmarks/listening.py [--worker]

The listeners in a loop, for the events of a short task, with these events made and told. In a worker, between
two steps of its own, that takes more than twice the time: `--worker` has the CPU of real workers with and
without metrics, in turn, and that of the listeners in them. It takes ten minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from consume import work
from contenders import OURS, Contender
from meter import Clockwork, Meter, metered
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from playing import PlayedQueue, bodies_in
from queues import fill, new_name
from servers import CREDENTIALS, sqs_server
from tasks import LISTENED_VARIABLE

from celery_sqs_visibility import events
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.operate.metrics import opentelemetry
from celery_sqs_visibility.operate.metrics.recorder import Recorder
from celery_sqs_visibility.operate.metrics.series import Series

TASKS = 20_000
ROUNDS = 7
WORKERS_TASKS = 2_000
EXPORTERS = ((), ("prometheus", "emf"), ("opentelemetry",))


def one_task(facts):
    """The events of a task that succeeds, in batches of ten: a fifth of a request each."""
    emit(events.Received(facts))
    emit(events.Started(facts))
    emit(events.Finished(facts))
    if events.DeliveryEnded.is_wanted():
        emit(events.DeliveryEnded(facts, "succeeded", 0.2, 0.1))
    emit(events.Deleted(facts))
    if events.SettlementEnded.is_wanted():
        emit(events.SettlementEnded(facts, 0.03))


def one_batch(facts):
    for _ in range(10):
        one_task(facts)
    for action in ("ReceiveMessage", "DeleteMessageBatch"):
        if events.SQSRequest.is_wanted():
            emit(events.SQSRequest(action, 0.01, "ok", "celery"))
    if events.ReceiveEnded.is_wanted():
        emit(events.ReceiveEnded("celery", 10, 10))


def microseconds():
    facts = events.DeliveryFacts("celery", "m", 1, 1.0, "tasks.add", "t", received=1.0, sent=time.time())
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
    print(f"{name:24} {spent:5.1f} us a task")


class WorkersClockwork(Clockwork):
    """Reads the CPU time of the pool's processes, too."""

    def now(self, requests=0):
        moment = super().now(requests)
        pool = Clockwork({child.pid: child for child in self.processes["main"].children()})
        moment.cpu["all"] = moment.cpu["main"] + sum(pool.now().cpu.values())
        return moment


def workers(rounds, tasks):
    """Real workers, with a queue that is played: what else the machine does befalls all."""
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as directory, sqs_server(Path(directory)) as server:
        queue = new_name()
        fill(server, queue, "nothing", tasks)
        run = partial(once, server, queue, Path(directory), bodies_in(server, queue))
        for pool in ("prefork", "threads"):
            spent = {exporters: [] for exporters in EXPORTERS}
            listened = {exporters: [] for exporters in EXPORTERS[1:]}
            for _ in range(rounds):
                for exporters in EXPORTERS:
                    spent[exporters].append(run(pool, exporters))
                for exporters, found in listened.items():
                    found.append(run(pool, exporters, listened=True))
            for exporters in EXPORTERS[1:]:
                show_workers(pool, exporters, spent, listened[exporters])


def once(server, queue, directory, bodies, pool, exporters, *, listened=False):
    """Microseconds of CPU a task, of the main process and of all; or of listeners, and their share of all."""
    contender = Contender(OURS, OURS, {"metrics": exporters})
    meter = Meter(WorkersClockwork(), len(bodies))
    told = directory / "listened"
    settings = {
        "config": {"imports": ["listened"]},
        "env": {LISTENED_VARIABLE: str(told)} if listened else {},
    }
    with metered(server.url, 0.01, meter, PlayedQueue(bodies)) as proxy:
        work(contender, proxy, queue, directory, meter, pool=pool, **settings)
    main, all_ = ((meter.last.cpu[of] - meter.first.cpu[of]) / len(bodies) * 1e6 for of in ("main", "all"))
    if not listened:
        return main, all_
    inside = float(told.read_text())
    return inside, 100 * inside / all_


def show_workers(pool, exporters, spent, listened):
    without = list(zip(*spent[()], strict=True))
    with_ = list(zip(*spent[exporters], strict=True))
    print(f"{pool}, {' and '.join(exporters)}: microseconds of CPU a task, median (quartiles)")
    for of, bare, full in zip(("main process", "all processes"), without, with_, strict=True):
        more = quartiles(each - other for each, other in zip(full, bare, strict=True))
        print(f"  {of:14} {quartiles(bare)} without, {quartiles(full)} with: {more} more")
    inside, share = zip(*listened, strict=True)
    print(f"  in listeners   {quartiles(inside)}, % of all processes': {quartiles(share)}")


def quartiles(values):
    least, median, most = statistics.quantiles(values)
    return f"{median:.1f} ({least:.1f} to {most:.1f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:  # before anything listens in this process
        workers(ROUNDS, WORKERS_TASKS)
    listeners()
