"""Publishing: how many tasks a second, with how many requests, and what CPU the producer needs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from contenders import KOMBU, REDIS, VISIBILITY
from delay import delayed
from meter import Meter, metered
from queues import new_name
from results import Result
from support.app import make_app

NAME = "publish"
DEADLINE = 300
WARM_UP = 20
THREADS = 16
ONE_BY_ONE, IN_A_BLOCK, IN_THREADS = "delay()", "publish_batch", f"delay() in {THREADS} threads"
CONTENDERS = (  # who, how, and the share of the tasks
    (KOMBU, ONE_BY_ONE, 0.05),
    (VISIBILITY, ONE_BY_ONE, 0.05),
    (KOMBU, IN_THREADS, 0.2),
    (VISIBILITY, IN_THREADS, 1.0),
    (VISIBILITY, IN_A_BLOCK, 1.0),
)
ON_REDIS = ((ONE_BY_ONE, 0.05), (IN_THREADS, 1.0))


def measure(arguments, servers):
    """Each run is a producer process of its own. Redis has the same latency, and none."""
    for seconds in arguments.latency:
        for contender, how, share in CONTENDERS:
            if arguments.only in contender.name:
                result = Result(NAME, f"{1000 * seconds:g} ms, {how}", contender.name)
                tasks = int(arguments.publish_tasks * share)
                for _ in range(arguments.repeats):
                    result.add(**on_sqs(contender, how, tasks, seconds, servers))
                yield result
    if servers.redis and arguments.only in REDIS.name:
        for seconds in (*arguments.latency, 0):
            for how, share in ON_REDIS:
                latency = f"{1000 * seconds:g} ms" if seconds else "no latency"
                result = Result(NAME, f"{latency}, {how}", REDIS.name)
                tasks = int(arguments.publish_tasks * (share if seconds else 1))
                for _ in range(arguments.repeats):
                    result.add(**on_redis(how, tasks, seconds, servers))
                yield result


def on_sqs(contender, how, tasks, seconds, servers):
    meter = Meter()
    with metered(servers.sqs.url, seconds, meter) as proxy:
        figures = produced(contender.config(proxy.port, new_name()), how, tasks)
    sent = [one for one in meter.passed if one.action.startswith("SendMessage")]
    sent = sent[-tasks:] if how == IN_THREADS else sent[WARM_UP:]
    return {**figures, "requests_per_task": len(sent) / tasks}


def on_redis(how, tasks, seconds, servers):
    with delayed(urlsplit(servers.redis.url).port, seconds) as port:
        return produced(REDIS.config(port, new_name()), how, tasks)


def produced(config, how, tasks):
    """What a producer process tells of itself."""
    command = [sys.executable, __file__, json.dumps([config, how, tasks])]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE)
    seconds, cpu = json.loads(told.stdout)
    return {"tasks_per_s": tasks / seconds, "CPU_ms_per_task": 1000 * cpu / tasks}


def produce(config, how, tasks):
    """Publish, and print seconds and CPU seconds. The producer's process."""
    app = make_app("producer", config)

    @app.task(name="tasks.nothing")
    def nothing(number, text):
        """Never runs here."""

    def publish(count):
        for number in range(count):
            nothing.delay(number, text="twenty characters...")

    def publish_in_threads(count):
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(publish, [count // THREADS] * THREADS))

    block = contextlib.nullcontext
    if how == IN_A_BLOCK:
        from celery_sqs_visibility import publish_batch as block  # noqa: PLC0415 - not for the others
    work = publish_in_threads if how == IN_THREADS else publish
    work(WARM_UP)
    started, cpu = time.monotonic(), time.process_time()
    with block(app):
        work(tasks)
    print(json.dumps([time.monotonic() - started, time.process_time() - cpu]))


if __name__ == "__main__":
    produce(*json.loads(sys.argv[1]))
