"""Consuming no-op tasks: how many a second, with how many requests, and at what cost to the main process."""

from __future__ import annotations

import itertools
import os
import time
from urllib.parse import urlsplit

import redis
from contenders import KOMBU, KOMBU_EAGER, REDIS, VISIBILITY
from meter import Clockwork, Meter, metered
from playing import PlayedQueue, bodies_in
from queues import fill, new_name
from results import Result
from support.app import close_app, make_app

NAME = "consume"
CONTENDERS = (KOMBU, KOMBU_EAGER, VISIBILITY)
DEADLINE = 300
POLL_SECONDS = 0.005
LEAST = 50  # tasks


def measure(arguments, servers):
    """All contenders in turn, in each pool, at each latency; Redis where it is, without latency.

    Ours once more without an emulator, which shares the machine with the worker as Redis hardly does.
    """
    for seconds, pool in itertools.product(arguments.latency, arguments.pool):
        for contender in CONTENDERS:
            if arguments.only in contender.name:
                result = Result(NAME, f"{1000 * seconds:g} ms, {pool}", contender.name)
                tasks = max(LEAST, int(arguments.tasks * contender.share))
                for _ in range(arguments.repeats):
                    result.add(**on_sqs(contender, tasks, seconds, pool, servers.sqs, servers.directory))
                yield result
        if arguments.only in VISIBILITY.name:
            result = Result(NAME, f"{1000 * seconds:g} ms, {pool}, no emulator", VISIBILITY.name)
            for _ in range(arguments.repeats):
                result.add(
                    **on_sqs(
                        VISIBILITY,
                        arguments.tasks,
                        seconds,
                        pool,
                        servers.sqs,
                        servers.directory,
                        played=True,
                    )
                )
            yield result
    for pool in arguments.pool if servers.redis and arguments.only in REDIS.name else ():
        result = Result(NAME, f"no latency, {pool}", REDIS.name)
        for _ in range(arguments.repeats):
            result.add(**on_redis(arguments.tasks, pool, servers.redis, servers.directory))
        yield result


def on_sqs(contender, tasks, seconds, pool, server, directory, *, played=False):
    """One run, from the first message received to the last deleted; `played`: the proxy answers by itself."""
    queue = new_name()
    fill(server, queue, "nothing", tasks)
    answerers = [PlayedQueue(bodies_in(server, queue))] if played else []
    clockwork = Clockwork()
    clockwork.watch(proxy=os.getpid(), server=server.pid)
    meter = Meter(clockwork, tasks)
    with (
        metered(server.url, seconds, meter, *answerers) as proxy,
        contender.worker(proxy.port, queue, directory, pool=pool) as worker,
    ):
        clockwork.watch(main=worker.pid)
        if not meter.done.wait(DEADLINE):
            raise TimeoutError(f"{meter.deleted} of {tasks} tasks were done. The log:\n{worker.log[-2000:]}")
    return figures(meter.first, meter.last, tasks)


def figures(first, last, tasks):
    took = last.at - first.at
    spent = {name: last.cpu[name] - first.cpu.get(name, 0) for name in last.cpu}
    return {
        "tasks_per_s": tasks / took,
        "requests_per_task": (last.requests - first.requests) / tasks,
        "main_CPU_ms_per_task": 1000 * spent["main"] / tasks,
        "main_cores": spent["main"] / took,
        "proxy_cores": spent.get("proxy", 0) / took,
        "server_cores": spent["server"] / took,
    }


def on_redis(tasks, pool, server, directory):
    """One run; what is in the queue and in kombu's hash of unacknowledged messages tells when it is over."""
    queue = new_name()
    port = urlsplit(server.url).port
    app = make_app("producer", REDIS.config(port, queue), set_as_current=False)
    for _ in range(tasks):
        app.send_task("tasks.nothing")
    close_app(app)
    client = redis.Redis(port=port)
    clockwork = Clockwork()
    clockwork.watch(server=server.pid)
    asked = 0  # commands of our own

    def ask(command, *arguments):
        nonlocal asked
        asked += 1
        return client.execute_command(command, *arguments)

    def commands():
        """What others have asked of it."""
        return ask("INFO", "stats")["total_commands_processed"] - asked

    with REDIS.worker(port, queue, directory, pool=pool) as worker:
        clockwork.watch(main=worker.pid)
        until = time.monotonic() + DEADLINE
        while ask("LLEN", queue) >= tasks:
            _rest(until, worker)
        first = clockwork.now(commands())
        while ask("LLEN", queue) or ask("HLEN", "unacked"):
            _rest(until, worker)
        return figures(first, clockwork.now(commands()), tasks)


def _rest(until, worker):
    if time.monotonic() > until:
        raise TimeoutError(worker.log[-2000:])
    time.sleep(POLL_SECONDS)
