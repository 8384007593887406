"""Amazon SQS without Amazon: moto's server as a process of its own."""

from __future__ import annotations

import http.client
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

SERVER = Path(__file__).with_name("moto_server.py")
START_SECONDS = 60  # importing moto takes seconds on a busy machine


class MotoServer:
    """An SQS endpoint on 127.0.0.1. `start()` returns when it answers; a context manager."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = GuardedProcess(self.command(self.port), directory / f"moto-{self.port}.log")

    @staticmethod
    def command(port: int) -> list[str]:
        """The command line of a server on that port."""
        return [sys.executable, str(SERVER), "-H", "127.0.0.1", "-p", str(port)]

    def start(self) -> Self:
        self.process.start()
        wait_until(self._answers, START_SECONDS, lambda: f"moto to answer. Its log:\n{self.process.log}")
        return self

    def stop(self) -> None:
        self.process.stop()

    def _answers(self) -> bool:
        if not self.process.running:
            raise RuntimeError(f"moto exited with {self.process.returncode}. Its log:\n{self.process.log}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/moto-api/data.json")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
