"""Amazon SQS without Amazon: moto's server as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port

if TYPE_CHECKING:
    from typing_extensions import Self

SERVER = Path(__file__).with_name("moto_server.py")
START_SECONDS = 60  # importing moto takes seconds on a busy machine


class MotoServer(GuardedProcess):
    """An SQS endpoint on 127.0.0.1. `start()` returns when it listens."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, str(SERVER), "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, directory / f"moto-{self.port}.log")

    def start(self) -> Self:
        return super().start().wait_for_log("Running on", START_SECONDS)
