"""Child processes that the demo cannot leave behind, nor its directory, whatever ends it."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.05

#: Reads process groups, one per line; when nobody can write any more, because the demo is gone, kills them.
#: A parent-death signal would not do: it is for one process, and a worker has a pool.
GUARD = """
import os, shutil, signal, sys
for group in map(int, sys.stdin.readlines()):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class StartError(Exception):
    """A child did not start; the text has its log."""


class Stage:
    """A temporary directory, and processes in it. If we are killed, the guard clears it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="celery-sqs-demo-"))
        self._children: list[subprocess.Popen[bytes]] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not for it
        )

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a Python module in a process group of its own, which Ctrl-C does not reach."""
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        if self._guard.stdin:
            self._guard.stdin.write(b"%d\n" % child.pid)
            self._guard.stdin.flush()
        return child

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def wait_until(
        self, name: str, child: subprocess.Popen[bytes], ready: Callable[[], bool], seconds: float
    ) -> None:
        """Wait until a child is ready.

        Raises:
            StartError: it ended before, or took too long.
        """
        until = time.monotonic() + seconds
        while not ready():
            if child.poll() is not None or time.monotonic() > until:
                said = self.log(name).read_text(errors="replace")
                raise StartError(f"{name} did not start within {seconds:g} s:\n{said}")
            time.sleep(POLL_SECONDS)

    def clear(self) -> None:
        """Kill what runs and remove the directory."""
        for child in self._children:
            # The group, not the child: a pool may outlive its worker.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._guard.kill()
        self._guard.communicate()


@contextmanager
def set_stage() -> Iterator[Stage]:
    """A stage that is cleared when the `with` block is left."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.clear()


def start_sqs(stage: Stage, seconds: float) -> str:
    """Start moto's server; its URL once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = stage.start("moto", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    stage.wait_until("moto", child, lambda: _answers(port), seconds)
    return f"http://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/moto-api/data.json")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()
