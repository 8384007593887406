"""Consuming no-op tasks: how many a second, with how many requests, and at what cost to the main process."""

from __future__ import annotations

import itertools
import os
import time
from functools import partial
from urllib.parse import urlsplit

import redis
from contenders import KOMBU, KOMBU_EAGER, REDIS, VISIBILITY
from floor import FLOOR, measure_floor
from meter import Clockwork, Meter, metered
from peers import PEERS
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
    """All contenders in each pool and at each latency, in rounds: what else the machine does befalls all.

    Redis where it is, without latency. Ours once more without an emulator, which shares the machine with the
    worker as Redis hardly does. Celery's floor, which has no broker.
    """
    cases = [
        (result, run) for result, run in all_cases(arguments, servers) if arguments.only in result.contender
    ]
    for _ in range(arguments.repeats):
        for result, run in cases:
            result.add(**run())
    return [result for result, _ in cases]


def all_cases(arguments, servers):
    """What is measured, and how to do it once."""
    sqs, directory = servers.sqs, servers.directory
    for pool, seconds in itertools.product(arguments.pool, arguments.latency):
        case = f"{1000 * seconds:g} ms, {pool}"
        for contender in (*CONTENDERS, *(peer for peer in PEERS if peer.installed)):
            tasks = max(LEAST, int(arguments.tasks * contender.share))
            run = partial(on_sqs, contender, tasks, seconds, pool, sqs, directory)
            yield Result(NAME, case, contender.name), run
        played = partial(on_sqs, VISIBILITY, arguments.tasks, seconds, pool, sqs, directory, played=True)
        yield Result(NAME, f"{case}, no emulator", VISIBILITY.name), played
    for pool in arguments.pool if servers.redis else ():
        run = partial(on_redis, arguments.tasks, pool, servers.redis, directory)
        yield Result(NAME, f"no latency, {pool}", REDIS.name), run
    for pool in arguments.pool:
        run = partial(measure_floor, arguments.tasks, pool, directory)
        yield Result(NAME, f"no broker, {pool}", FLOOR.name), run


def on_sqs(contender, tasks, seconds, pool, server, directory, *, played=False):
    """One run, from the first message received to the last deleted; `played`: the proxy answers by itself."""
    queue = new_name()
    if contender in PEERS:
        contender.fill(server, queue, tasks)
    else:
        fill(server, queue, "nothing", tasks)
    answerers = [PlayedQueue(bodies_in(server, queue))] if played else []
    clockwork = Clockwork()
    clockwork.watch(proxy=os.getpid(), server=server.pid)
    meter = Meter(clockwork, tasks)
    with metered(server.url, seconds, meter, *answerers) as proxy:
        work(contender, proxy, queue, directory, meter, pool=pool)
    return figures(meter.first, meter.last, tasks)


def work(contender, proxy, queue, directory, meter, **options):
    """Have a worker do the tasks that a meter waits for."""
    with contender.worker(proxy.port, queue, directory, **options) as worker:
        meter.clockwork.watch(main=worker.pid)
        meter.clockwork.watch_tree(worker=worker.pid)
        if not meter.done.wait(DEADLINE):
            raise TimeoutError(f"{meter.deleted} tasks were done. The log:\n{worker.log[-2000:]}")


def figures(first, last, tasks):
    took = last.at - first.at
    spent = {name: last.cpu[name] - first.cpu.get(name, 0) for name in last.cpu}
    return {
        "tasks_per_s": tasks / took,
        "requests_per_task": (last.requests - first.requests) / tasks,
        "main_CPU_ms_per_task": 1000 * spent["main"] / tasks,
        "worker_CPU_ms_per_task": 1000 * spent["worker"] / tasks,
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
        clockwork.watch_tree(worker=worker.pid)
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
