"""The heartbeat at scale: how full its batches are, what it costs, and whether a message expires."""

from __future__ import annotations

import time

from contenders import VISIBILITY
from meter import Clockwork, Meter, metered
from queues import fill, new_name
from results import Result
from support.processes import wait_until

NAME = "heartbeat"
VISIBILITY_TIMEOUT = 60
DEADLINE = 120
BATCH = "ChangeMessageVisibilityBatch"


def measure(arguments, servers):
    """Two visibility timeouts long, from when the worker holds them all: two slots run, the rest waits."""
    case = (
        f"{arguments.in_flight:,} in flight for {arguments.beat_seconds:g} s, visibility_timeout=60, threads"
    )
    result = Result(NAME, case, VISIBILITY.name)
    if arguments.only in VISIBILITY.name:
        result.add(**beat(arguments, servers))
        yield result


def beat(arguments, servers):
    queue, held = new_name(), arguments.in_flight
    fill(servers.sqs, queue, "hold", held)
    clockwork, meter = Clockwork(), Meter()
    options = {
        **VISIBILITY.config(0, queue)["broker_transport_options"],
        "visibility_timeout": VISIBILITY_TIMEOUT,
    }
    with (
        metered(servers.sqs.url, arguments.latency[0], meter) as proxy,
        VISIBILITY.worker(
            proxy.port,
            queue,
            servers.directory,
            pool="threads",
            config={"broker_transport_options": options, "worker_prefetch_multiplier": 0},
        ) as worker,
    ):
        clockwork.watch(main=worker.pid, server=servers.sqs.pid)
        wait_until(
            lambda: meter.received >= held, DEADLINE, lambda: f"{meter.received} held\n{worker.log[-2000:]}"
        )
        first = clockwork.now()
        time.sleep(arguments.beat_seconds)
        last = clockwork.now()
        lost = worker.log.count("lost")
    took = last.at - first.at
    beats = [one for one in meter.passed if one.action == BATCH and first.at <= one.at <= last.at]
    return {
        "entries_per_batch": sum(len(one.parameters["Entries"]) for one in beats) / max(1, len(beats)),
        "requests_per_s": len(beats) / took,
        "main_CPU_percent_of_a_core": 100 * (last.cpu["main"] - first.cpu["main"]) / took,
        "expired": meter.received - held,
        "told_lost": lost,
        "server_cores": (last.cpu["server"] - first.cpu["server"]) / took,
    }
