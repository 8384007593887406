"""A real `celery worker` process, to be watched, frozen and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from support.app import CONFIG_VARIABLE, encode_config
from support.processes import GuardedProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

TESTS = Path(__file__).resolve().parents[1]
# `tests` for `support`, its `tasks` for the task modules, the root for the package.
IMPORT_PATHS = (TESTS.parent, TESTS, TESTS / "tasks")
READY_SECONDS = 60


class WorkerProcess:
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
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", CONFIG_VARIABLE: encode_config(config or {})}
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (*import_paths, *IMPORT_PATHS, *inherited)))
        environment |= {"AWS_ENDPOINT_URL_SQS": endpoint} if endpoint else {}
        self.process = GuardedProcess(
            [*command, *extra_args], Path(log_path), {**environment, **(env or {})}, stdin=stdin
        )
        self._read_from = 0

    def start(self) -> Self:
        """Start it, without waiting for readiness. A restart's log follows that of the first run."""
        self._read_from = len(self.process.log)
        self.process.start()
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    @property
    def log(self) -> str:
        """What it printed since the last `start()`."""
        return self.process.log[self._read_from :]

    def wait_ready(self, timeout: float = READY_SECONDS) -> Self:
        """Wait for the line that ends in " ready."; a worker that exits instead is an error with its log."""
        return self.wait_for_log(" ready.", timeout)

    def wait_for_log(self, text: str, timeout: float = 30) -> Self:
        wait_until(lambda: self._logged_or_gone(text), timeout, lambda: f"{text!r} in the log:\n{self.log}")
        return self

    def _logged_or_gone(self, text: str) -> bool:
        gone = not self.running  # asked before the log is read: what it wrote last still counts
        if text in self.log:
            return True
        if gone:
            raise RuntimeError(f"exited with {self.returncode} before {text!r}. Its log:\n{self.log}")
        return False

    def terminate(self) -> None:
        """SIGTERM to the main process: Celery's warm shutdown."""
        self.process.signal_main(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the main process and its pool, as a lost machine."""
        self.process.signal_group(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP to all of it: alive, and doing nothing."""
        self.process.signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.signal_group(signal.SIGCONT)

    def wait_exit(self, timeout: float = 60) -> int:
        """The return code: 0 after a clean shutdown, minus the signal's number when killed."""
        return self.process.wait_exit(timeout)

    def stop(self) -> None:
        """Kill whatever is left. Idempotent."""
        self.process.stop()

    def children(self) -> list[int]:
        """Pids of the pool's processes."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """User and system time of the main process and its children, dead ones included."""
        main = psutil.Process(self.pid)
        seconds = sum(main.cpu_times()[:4])  # user, system, and both of the children it has reaped
        for child in main.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                seconds += sum(child.cpu_times()[:4])
        return seconds

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
