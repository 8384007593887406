"""An idle worker: requests a minute, all contenders at the same time."""

from __future__ import annotations

import contextlib
import time
from urllib.parse import urlsplit

import redis
from contenders import KOMBU, OURS, REDIS, VISIBILITY, Contender
from meter import Meter, metered
from queues import create, new_name
from results import Result

NAME = "idle"
# What `polling_interval_max` grows to in the end, which takes minutes, and from the beginning.
SLEEPING = Contender(f"{OURS}, polling_interval=60", OURS, {"polling_interval": 60})
CONTENDERS = (KOMBU, VISIBILITY, SLEEPING)


def measure(arguments, servers):
    """After as long a time to settle in as is then measured."""
    meters, results = {}, {}
    with contextlib.ExitStack() as stack:
        for contender in CONTENDERS:
            if arguments.only in contender.name:
                meters[contender] = meter = Meter()
                queue = new_name()
                create(servers.sqs, queue)
                proxy = stack.enter_context(metered(servers.sqs.url, arguments.latency[0], meter))
                stack.enter_context(contender.worker(proxy.port, queue, servers.directory))
        counters = {contender.name: meter.count for contender, meter in meters.items()}
        if servers.redis and arguments.only in REDIS.name:
            port = urlsplit(servers.redis.url).port
            stack.enter_context(REDIS.worker(port, new_name(), servers.directory))
            client = redis.Redis(port=port)
            counters[REDIS.name] = lambda: client.info("stats")["total_commands_processed"]
        time.sleep(arguments.idle_seconds)
        before = {name: count() for name, count in counters.items()}
        time.sleep(arguments.idle_seconds)
        for name, count in counters.items():
            results[name] = Result(NAME, f"{arguments.idle_seconds:g} s, prefork", name)
            results[name].add(requests_per_minute=(count() - before[name]) * 60 / arguments.idle_seconds)
    yield from results.values()
