"""Publishing: how many tasks a second, with how many requests, and what CPU the producer needs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from urllib.parse import urlsplit

from contenders import KOMBU, REDIS, VISIBILITY
from meter import Meter, metered
from queues import new_name
from results import Result
from support.app import make_app

NAME = "publish"
DEADLINE = 300
WARM_UP = 20
ONE_BY_ONE, IN_A_BLOCK = "delay()", "publish_batch"
CONTENDERS = (  # who, how, and the share of the tasks
    (KOMBU, ONE_BY_ONE, 0.05),
    (VISIBILITY, ONE_BY_ONE, 0.05),
    (VISIBILITY, IN_A_BLOCK, 1.0),
)


def measure(arguments, servers):
    """Each run is a producer process of its own; Redis where it is, without latency."""
    for seconds in arguments.latency:
        for contender, how, share in CONTENDERS:
            if arguments.only in contender.name:
                result = Result(NAME, f"{1000 * seconds:g} ms, {how}", contender.name)
                tasks = int(arguments.publish_tasks * share)
                for _ in range(arguments.repeats):
                    result.add(**on_sqs(contender, how, tasks, seconds, servers))
                yield result
    if servers.redis and arguments.only in REDIS.name:
        result = Result(NAME, f"no latency, {ONE_BY_ONE}", REDIS.name)
        for _ in range(arguments.repeats):
            port = urlsplit(servers.redis.url).port
            result.add(**produced(REDIS.config(port, new_name()), ONE_BY_ONE, arguments.publish_tasks))
        yield result


def on_sqs(contender, how, tasks, seconds, servers):
    meter = Meter()
    with metered(servers.sqs.url, seconds, meter) as proxy:
        figures = produced(contender.config(proxy.port, new_name()), how, tasks)
    sent = [one for one in meter.passed if one.action.startswith("SendMessage")][WARM_UP:]
    return {**figures, "requests_per_task": len(sent) / tasks}


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

    block = contextlib.nullcontext
    if how == IN_A_BLOCK:
        from celery_sqs_visibility import publish_batch as block  # noqa: PLC0415 - not for the others
    publish(WARM_UP)
    started, cpu = time.monotonic(), time.process_time()
    with block(app):
        publish(tasks)
    print(json.dumps([time.monotonic() - started, time.process_time() - cpu]))


if __name__ == "__main__":
    produce(*json.loads(sys.argv[1]))
