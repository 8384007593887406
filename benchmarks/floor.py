"""Celery's own floor: a worker as the contenders have it, but with a broker that costs nothing."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

from celery.signals import worker_ready
from contenders import Contender
from free_broker import FreeBroker, FreeChannel
from queues import new_name
from support.processes import wait_until

TASKS_VARIABLE, FILE_VARIABLE = "BENCH_FLOOR_TASKS", "BENCH_FLOOR_FILE"
DEADLINE = 300
TOGETHER = 10

FLOOR = Contender("Celery's floor", "floor:FloorBroker")


def measure_floor(tasks, pool, directory):
    """One run: what the worker tells of itself when it has acknowledged the last task."""
    queue = new_name()
    file = directory / f"{queue}.json"
    env = {TASKS_VARIABLE: str(tasks), FILE_VARIABLE: str(file)}
    with FLOOR.worker(0, queue, directory, pool=pool, env=env) as worker:
        wait_until(file.exists, DEADLINE, lambda: worker.log)
    seconds, cpu = json.loads(file.read_text())
    return {
        "tasks_per_s": tasks / seconds,
        "requests_per_task": 0,
        "main_CPU_ms_per_task": 1000 * cpu / tasks,
        "main_cores": cpu / seconds,
    }


# In the worker's process


class FloorChannel(FreeChannel):
    """Asks for ten more messages when ten are acknowledged, and tells the time and CPU when all are."""

    acknowledged = itertools.count(1)  # by the main thread, or by those of the pool

    def basic_ack(self, *_, **_options):
        number = next(self.acknowledged)
        if number % TOGETHER == 0:
            FloorBroker.ask()
        if number == int(os.environ[TASKS_VARIABLE]):
            FloorBroker.tell()


class FloorBroker(FreeBroker):
    """Delivers ten messages for each byte in a pipe, of which two are there at the start."""

    Channel = FloorChannel
    readable, writable = os.pipe()
    started: tuple[float, float] | None = None

    def register_with_event_loop(self, _connection, loop):
        loop.add_reader(self.readable, self._deliver_asked)

    def _deliver_asked(self):
        if not self.started:
            type(self).started = self._now()
        os.read(self.readable, 1)
        self._deliver_ten()

    @classmethod
    def ask(cls):
        os.write(cls.writable, b"\0")

    @classmethod
    def tell(cls):
        spent = [now - then for now, then in zip(cls._now(), cls.started, strict=True)]
        file = Path(os.environ[FILE_VARIABLE])
        file.with_suffix(".new").write_text(json.dumps(spent))
        file.with_suffix(".new").replace(file)

    @staticmethod
    def _now():
        return time.monotonic(), time.process_time()


@worker_ready.connect
def _fill(sender, **_):
    """Publish all tasks before the first is delivered: the event loop does not turn yet."""
    for _ in range(int(os.environ.get(TASKS_VARIABLE, "0"))):
        sender.app.send_task("tasks.nothing")
    FloorBroker.ask()
    FloorBroker.ask()
