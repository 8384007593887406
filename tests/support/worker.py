"""A real `celery worker` process, to be watched, frozen and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from support.app import CONFIG_VARIABLE, encode_config
from support.processes import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

TESTS = Path(__file__).resolve().parents[1]
# `tests` for `support`, its `tasks` for the task modules, the root for the package.
IMPORT_PATHS = (TESTS.parent, TESTS, TESTS / "tasks")
READY_SECONDS = 120


def environment(
    config: Mapping[str, Any] | None = None, import_paths: Sequence[Path] = (), **more: str
) -> dict[str, str]:
    """The environment of a process that imports the tests' task modules, and their apps' settings."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join(map(str, (*import_paths, *IMPORT_PATHS, *inherited)))
    return {**os.environ, CONFIG_VARIABLE: encode_config(config or {}), "PYTHONPATH": path, **more}


class WorkerProcess(GuardedProcess):
    """`celery -A <module> worker`, with this interpreter's Celery.

    Args:
        module: the task module, importable from `tests/tasks`, `tests`, the root or `import_paths`.
        queues: those it consumes; none given means the app's own default.
        name: the part of the node name before the `@`; unique by default.
        loglevel: INFO is the least that says "ready".
        config: Celery settings, for modules that make their app with `support.app.make_app`.
        endpoint: becomes AWS_ENDPOINT_URL_SQS.
        env: further environment variables; these win.
    """

    def __init__(
        self,
        module: str,
        log_path: Path,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        prefetch_multiplier: int | None = None,
        name: str | None = None,
        loglevel: str = "INFO",
        extra_args: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
        env: Mapping[str, str] | None = None,
        import_paths: Sequence[Path] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.pool = pool
        name = name or Path(log_path).stem
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "-n", f"{name}@%h"]
        command += ["-P", pool, "-c", str(concurrency), "-l", loglevel]
        command += ["-Q", ",".join(queues)] if queues else []
        command += [] if prefetch_multiplier is None else ["--prefetch-multiplier", str(prefetch_multiplier)]
        given = {"AWS_ENDPOINT_URL_SQS": endpoint} if endpoint else {}
        given = {"PYTHONUNBUFFERED": "1", **given, **(env or {})}
        found = environment(config, import_paths, **given)
        super().__init__([*command, *extra_args], Path(log_path), found, stdin=stdin)

    def wait_ready(self, timeout: float = READY_SECONDS) -> Self:
        """Wait for the line that ends in " ready."; a worker that exits instead is an error with its log."""
        return self.wait_for_log(" ready.", timeout)

    def terminate(self) -> None:
        """SIGTERM to the main process: Celery's warm shutdown."""
        self.signal_main(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the main process and its pool, as a lost machine."""
        self.signal_group(signal.SIGKILL)

    def children(self) -> list[int]:
        """Pids of the pool's processes."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
