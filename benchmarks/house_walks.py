"""Five walks through the package: the files that one message touches in a worker's main process, and hops.

A hop is a call, or a return, that crosses from one file of the package to another; Celery's and Python's own
frames between the two are passed over. A real prefork worker is profiled, all threads of its main process,
when it has done each walk before. What an idle worker does in as long a time is taken off, by function and by
pair of files, the supervisor's looks and HTTP are left out, and of several walks alike the least counts.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import paths  # noqa: F401 - where `support` is
from support.app import behind, close_app, make_app
from support.emulator import MotoServer
from support.worker import WorkerProcess

DIRECTORY_VARIABLE = "HOUSE_DIRECTORY"
QUEUE = "house"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
NOT_WALKED = ("sqs-http",)  # answers at its own times, whatever happens
WINDOW_SECONDS = 2.0
TIMES = 5
ENDS = 3


@dataclass(frozen=True)
class Walk:
    """What one message does.

    Attributes:
        calls: by file and function.
        hops: by the two files.
    """

    calls: Counter
    hops: Counter

    @property
    def files(self):
        return sorted({file for file, _ in self.calls})

    def __sub__(self, other):
        return Walk(self.calls - other.calls, self.hops - other.hops)


def walk_of(rows):
    """Counts of all threads that are walked, added up."""
    counters = {"call": Counter(), "hop": Counter()}
    for thread, kind, file, other, number in rows:
        if not thread.startswith(NOT_WALKED):
            counters[kind][file, other] += number
    return Walk(counters["call"], counters["hop"])


def least(walks):
    """What is in each of the walks, as often as in the one that has the least of it."""
    first, *others = walks
    calls, hops = first.calls, first.hops
    for walk in others:
        calls, hops = calls & walk.calls, hops & walk.hops
    return Walk(calls, hops)


class Site:
    """A worker under the profiler, and who sends to it."""

    def __init__(self, directory, url, **options):
        self.directory = directory
        directory.mkdir()
        self.config = {
            "task_default_queue": QUEUE,
            "broker_transport_options": {"queue_name_prefix": f"{directory.name}-", **options},
        }
        self.url = url
        self.app = make_app("producer", behind(url, self.config), set_as_current=False)
        self.worker = WorkerProcess(
            "house_tasks",
            directory / "worker.log",
            concurrency=1,
            config=self.config,
            endpoint=url,
            env={DIRECTORY_VARIABLE: str(directory)},
            import_paths=[Path(__file__).parent],
            extra_args=["--without-gossip", "--without-mingle"],
        )

    def __enter__(self):
        self.worker.start().wait_ready()
        return self

    def __exit__(self, *_):
        self.worker.stop()
        close_app(self.app)

    def counted(self):
        """The walk since the worker's start."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.directory / "counts"))
            return walk_of(json.loads(b"".join(iter(lambda: connection.recv(1 << 20), b""))))

    def walk(self, begin):
        """The walk in a window of time at whose beginning `begin` is called."""
        before = self.counted()
        until = time.monotonic() + WINDOW_SECONDS
        begin()
        time.sleep(max(0, until - time.monotonic()))
        return self.counted() - before

    def repeated(self, begins):
        """The least of several walks of each kind, by name."""
        return {name: self._least(begin) for name, begin in begins.items()}

    def _least(self, begin):
        self.walk(begin)  # it imports what the next ones use
        return least([self.walk(begin) for _ in range(TIMES)])

    def succeed(self):
        self.app.send_task("house_tasks.succeed")

    def fail(self):
        self.app.send_task("house_tasks.fail")

    def eta(self):
        self.app.send_task("house_tasks.succeed", countdown=3600, delay_seconds=0)

    def ping(self):
        if not self.app.control.inspect(timeout=1).ping():
            raise RuntimeError(f"no answer to a ping. Its log:\n{self.worker.log}")

    def idle(self):
        pass

    def end(self):
        """The walk of SIGTERM, up to the end of the process."""
        before = self.counted()
        self.worker.terminate()
        self.worker.wait_exit()
        return walk_of(json.loads((self.directory / "end").read_text())) - before


def walks():
    """The five walks, by name."""
    os.environ.update(CREDENTIALS)
    logging.getLogger("celery_sqs_visibility").addHandler(logging.NullHandler())  # the workers' logs tell
    with tempfile.TemporaryDirectory() as directory, MotoServer(Path(directory)) as moto:
        with Site(Path(directory) / "messages", moto.url) as site:
            begins = {"success": site.succeed, "failure with a delay": site.fail, "ETA of an hour": site.eta}
            found = site.repeated({**begins, "idle": site.idle})
        with Site(Path(directory) / "commands", moto.url, remote_control=True) as site:
            pings = site.repeated({"`inspect ping`": site.ping, "idle with remote control": site.idle})
        ends = [one_end(Path(directory) / f"end-{number}", moto.url) for number in range(ENDS)]
    idle, idle_commands = found.pop("idle"), pings.pop("idle with remote control")
    found = {name: walk - idle for name, walk in found.items()}
    found["SIGTERM"] = least(ends)
    return found | {name: walk - idle_commands for name, walk in pings.items()}


def one_end(directory, url):
    """The walk of SIGTERM in a worker that has run one message, and polls."""
    with Site(directory, url, wait_time_seconds=1) as site:
        site.walk(site.succeed)
        return site.end()
