"""Who is compared: the same task module on three transports, each as its users would run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import paths  # noqa: F401
from support.worker import WorkerProcess
from tasks import TASK_CLASS_VARIABLE

OURS = "celery_sqs_visibility"
SQS_OPTIONS = {"region": "us-east-1", "is_secure": False}


@dataclass(frozen=True, eq=False)
class Contender:
    """A transport and what is set for it.

    Attributes:
        share: of the tasks that others are given, for those who would take minutes.
    """

    name: str
    transport: str
    options: dict = field(default_factory=dict)
    share: float = 1.0

    @property
    def on_sqs(self):
        return self.transport != "redis"

    @property
    def task_class(self):
        return f"{OURS}:VisibilityTask" if self.transport == OURS else ""

    def config(self, port, queue):
        """Celery settings; the port is the proxy's, or Redis's."""
        url = f"sqs://made-up:made-up@127.0.0.1:{port}" if self.on_sqs else f"redis://127.0.0.1:{port}/0"
        return {
            "broker_url": url,
            "broker_transport": self.transport,
            "broker_transport_options": {**(SQS_OPTIONS if self.on_sqs else {}), **self.options},
            "task_default_queue": queue,
        }

    def worker(self, port, queue, directory, *, pool="prefork", env=None, **options):
        """A worker of two slots."""
        return WorkerProcess(
            "tasks",
            directory / f"{queue}.log",
            pool=pool,
            loglevel=options.pop("loglevel", "WARNING"),
            config={**self.config(port, queue), **options.pop("config", {})},
            import_paths=[Path(__file__).parent],
            env={TASK_CLASS_VARIABLE: self.task_class, **(env or {})},
            **options,
        )


KOMBU = Contender("kombu SQS", "sqs", share=0.015)
KOMBU_EAGER = Contender("kombu SQS, polling_interval=0.01", "sqs", {"polling_interval": 0.01}, share=0.05)
VISIBILITY = Contender(OURS, OURS)
REDIS = Contender("Redis, local", "redis")
