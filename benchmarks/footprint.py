"""Bytes of main-process memory for each message in flight, by tracemalloc: ours and Celery's own."""

from __future__ import annotations

import contextlib
import time

from contenders import KOMBU_EAGER, VISIBILITY
from meter import Meter, metered
from queues import fill, new_name
from results import Result
from support.processes import wait_until
from tasks import MEMORY_VARIABLE

NAME = "memory"
DEADLINE = 90
WARM_UP = 20
REST_SECONDS = 3


def measure(arguments, servers):
    """The slots run, the rest waits: what many messages take more than a few."""
    for contender in (KOMBU_EAGER, VISIBILITY):
        if arguments.only in contender.name:
            result = Result(NAME, f"{arguments.in_memory:,} in flight, threads", contender.name)
            few = allocated(contender, WARM_UP, servers)
            many = allocated(contender, WARM_UP + arguments.in_memory, servers)
            result.add(bytes_per_message=(many - few) / arguments.in_memory)
            yield result


def allocated(contender, messages, servers):
    """Bytes, when that many are held."""
    queue, meter = new_name(), Meter()
    told = servers.directory / f"{queue}.bytes"
    fill(servers.sqs, queue, "hold", messages)
    with (
        metered(servers.sqs.url, 0, meter) as proxy,
        contender.worker(
            proxy.port,
            queue,
            servers.directory,
            pool="threads",
            # Ours holds long tasks beyond the slots where there is no limit; kombu takes few without one.
            config={"worker_prefetch_multiplier": 0 if contender is VISIBILITY else messages},
            env={MEMORY_VARIABLE: str(told), "PYTHONTRACEMALLOC": "1"},
        ) as worker,
    ):
        wait_until(lambda: meter.received >= messages, DEADLINE, lambda: worker.log[-2000:])
        time.sleep(REST_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            told.unlink()
        return int(wait_until(lambda: told.exists() and told.read_text(), DEADLINE, lambda: worker.log))
