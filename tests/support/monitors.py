"""Celery's monitors as processes: `celery events`, Flower, celery-exporter."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psutil
from support.processes import GuardedProcess, free_port
from support.worker import IMPORT_PATHS, environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

ROOT = IMPORT_PATHS[0]

#: Flower and celery-exporter have an environment of their own: every `celery` command of the tests would
#: import Flower, and celery-exporter needs other versions of some libraries.
PYTHON = ROOT / ".venvs/monitors/bin/python"

MISSING = "Flower and celery-exporter are missing: make .venvs/monitors/.installed"


class Monitor(GuardedProcess):
    """`celery -A work *args`, or `python *args` of another environment."""

    def __init__(
        self, log: Path, config: Mapping[str, object], *args: str, python: Path | None = None
    ) -> None:
        command = [str(python), *args] if python else [sys.executable, "-m", "celery", *args]
        found = environment(config, PYTHONUNBUFFERED="1", TERM="xterm")
        super().__init__(command, log, found, cwd=log.parent)


class Flower(Monitor):
    """Flower; `start()` returns when it serves pages."""

    def __init__(self, log: Path, config: Mapping[str, object], *args: str) -> None:
        assert PYTHON.exists(), MISSING
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = ("-m", "celery", *args, "flower", "--address=127.0.0.1", f"--port={port}")
        super().__init__(log, config, *command, python=PYTHON)
        self._env["FLOWER_UNAUTHENTICATED_API"] = "true"  # or its buttons want a password

    def start(self) -> Self:
        return super().start().wait_for_log("Visit me at")


class Exporter(Monitor):
    """celery-exporter, which is given a URL and nothing else."""

    def __init__(self, log: Path, broker_url: str) -> None:
        assert PYTHON.exists(), MISSING
        self.port = free_port()
        program = "import runpy, sys; from src.cli import cli; cli()"
        args = [f"--broker-url={broker_url}", "--host=127.0.0.1", f"--port={self.port}"]
        super().__init__(log, {}, "-c", program, *args, python=PYTHON)

    def metrics(self) -> str:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return answer.read().decode()
        return ""


class Screen(Monitor):
    """`celery *args` in a terminal. Its log is what it has drawn."""

    def __init__(self, log: Path, config: Mapping[str, object], *args: str, columns: int = 120) -> None:
        size = f"LINES='40', COLUMNS='{columns}'"
        program = f"import os, pty, sys; os.environ.update({size}); pty.spawn(sys.argv[1:])"
        command = [sys.executable, "-m", "celery", *args]
        super().__init__(log, config, "-c", program, *command, python=Path(sys.executable))

    def stop(self) -> None:
        """Kill the command, too: a terminal's is in a session, and so a group, of its own."""
        with contextlib.suppress(psutil.NoSuchProcess, RuntimeError):  # it has ended, or was not started
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
        super().stop()
