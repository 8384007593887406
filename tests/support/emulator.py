"""Amazon SQS without Amazon: moto's server as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port

if TYPE_CHECKING:
    from typing import Self

#: What every program of a test finds, and nothing of the developer's own account, nor of the machine's role.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

START_SECONDS = 60  # importing moto takes seconds on a busy machine


class MotoServer(GuardedProcess):
    """An SQS endpoint on 127.0.0.1. `start()` returns when it listens."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "celery_sqs_visibility.contacts.moto_server"]
        command += ["-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, directory / f"moto-{self.port}.log")

    def start(self) -> Self:
        return super().start().wait_for_log("Running on", START_SECONDS)
