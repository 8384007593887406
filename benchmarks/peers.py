"""Other task queues on SQS, in an environment of their own: what they do with the task that does nothing.

Not importable together with ours: their boto3 is another.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from paths import ROOT
from queues import create
from support.processes import GuardedProcess

ENVIRONMENT = ROOT / "benchmarks/.peers/bin"
MODULES = Path(__file__).with_name("peers")
FILL_SECONDS = 300


@dataclass(frozen=True, eq=False)
class Peer:
    """A task queue: its worker's command for each pool, of two slots.

    Attributes:
        share: of the tasks that others are given, where it would take minutes.
    """

    name: str
    module: str
    commands: dict[str, tuple[str, ...]]
    share: float = 1.0

    @property
    def installed(self):
        return (ENVIRONMENT / self.commands["prefork"][0]).exists()

    def fill(self, server, queue, tasks):
        """That many tasks in a new queue, in the peer's own format."""
        create(server, queue)
        command = [ENVIRONMENT / "python", MODULES / f"{self.module}.py", str(tasks)]
        subprocess.run(
            command,
            env=_environment(server.url, queue),
            check=True,
            capture_output=True,
            timeout=FILL_SECONDS,
        )

    def worker(self, port, queue, directory, *, pool):
        program, *rest = self.commands[pool]
        environment = _environment(f"http://127.0.0.1:{port}", queue)
        return GuardedProcess([ENVIRONMENT / program, *rest], directory / f"{queue}.log", environment)


def _environment(url, queue):
    return {**os.environ, "BENCH_ENDPOINT": url, "BENCH_QUEUE": queue, "PYTHONPATH": str(MODULES)}


PEERS = (
    Peer(
        "dramatiq_sqs",
        "dramatiq_tasks",
        {
            "prefork": ("dramatiq", "dramatiq_tasks", "--processes", "2", "--threads", "1"),
            "threads": ("dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2"),
        },
        share=0.1,
    ),
    Peer(
        "taskiq-aio-sqs",
        "taskiq_tasks",
        {
            "prefork": ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "2"),
            "threads": ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1"),
        },
        share=0.1,
    ),
)
