"""Child processes that cannot outlive the test run, and a few waits that cannot last for ever.

Every child gets a process group of its own (so that a worker dies with its pool), and is registered
with a guard: a process that reads from a pipe this process holds. When pytest goes, in whatever way
(SIGKILL included), the pipe ends and the guard kills every group that is still registered.
A parent-death signal (prctl) would reach the main process of a group only, and pool children survive it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from support.fork_server import ForkedProcess, may_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

T = TypeVar("T")

#: Between two looks at what is waited for: at first, and after a while. A look may be a request.
FIRST_LOOKS, LATER_LOOKS = 0.03, 0.25

#: How long to wait, in seconds, for what comes at once where nothing is wrong, on a machine that is busy with
#: other things: that something comes soon is shown by what has not come before it.
SOON = 90

#: Within so many seconds of a fault's end work goes on, and what a busy machine takes.
RECOVERY = 3 + 6

GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    group = int(line)
    groups.add(group) if group > 0 else groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


@functools.cache
def _guard() -> subprocess.Popen:
    """The process that kills what this one leaves behind."""
    # A session of its own: Ctrl-C and a killed process group must not take the guard along.
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        bufsize=1,
    )
    atexit.register(guard.communicate, timeout=5)
    return guard


def _tell_guard(group: int) -> None:
    """Register a process group, or forget it when negative."""
    _guard().stdin.write(f"{group}\n")


class GuardedProcess:
    """A command in its own process group, surely gone after `stop()`; its log is appended to.

    A context manager.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.command = list(command)
        self.log_path = Path(log_path)
        self._env, self._cwd, self._stdin = env, cwd, stdin
        self._process: subprocess.Popen | ForkedProcess | None = None
        self._read_from = 0

    def start(self) -> Self:
        """Start the command. Starting a running process is an error."""
        if self.running:
            raise RuntimeError(f"{self.command} is running already")
        self._read_from += len(self.log)
        with self.log_path.open("ab") as log:
            self._process = self._begin(log)
        _tell_guard(self.pid)
        return self

    def _begin(self, log: IO[bytes]) -> subprocess.Popen | ForkedProcess:
        env = self._env or os.environ
        if self._stdin == subprocess.DEVNULL and may_fork(self.command, env):
            return ForkedProcess(self.command, env, self._cwd, log)
        return subprocess.Popen(
            self.command,
            env=env,
            cwd=self._cwd,
            stdin=self._stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The main process, also the process group; an error before the first start."""
        if self._process is None:
            raise RuntimeError(f"{self.command} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """As subprocess has it: minus the signal's number for a killed process, `None` while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """What it printed since the last `start()`."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return text[self._read_from :]

    def wait_for_log(self, text: str, timeout: float = SOON) -> Self:
        """Wait until it has printed that; a process that exits instead is an error with its log."""

        def logged() -> bool:
            gone = not self.running  # asked before the log is read: what it wrote last still counts
            if text in self.log:
                return True
            if gone:
                raise RuntimeError(f"exited with {self.returncode} before {text!r}. Its log:\n{self.log}")
            return False

        wait_until(logged, timeout, lambda: f"{text!r} in the log:\n{self.log}")
        return self

    def signal_main(self, number: int) -> None:
        """Signal the main process only, as Docker and systemd's `KillMode=mixed` do."""
        if self.running:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Signal the main process and all it started; nobody left is no error."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait_exit(self, timeout: float = 2 * SOON) -> int:
        """The return code: 0 after a clean shutdown, minus the signal's number when killed."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.command} still runs after {timeout} s. Its log:\n{self.log}") from None

    def stop(self) -> None:
        """Kill whatever is left of the group. Idempotent; legal before `start()`."""
        if self._process is None:
            return
        if "COVERAGE_PROCESS_CONFIG" in os.environ and self.command[0] == sys.executable:
            self._let_write()
        self.signal_group(signal.SIGKILL)
        self._process.wait(10)
        _tell_guard(-self.pid)

    def _let_write(self) -> None:
        """With `make coverage`: let all processes write what they measured, but those that hang."""
        from support.covering import WRITE_AND_END  # noqa: PLC0415 - it imports coverage.py

        self.signal_group(WRITE_AND_END)
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            wait_until(lambda: self._process.poll() is not None and os.killpg(self.pid, 0), 2, "the end")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def free_port() -> int:
    """A TCP port of 127.0.0.1 for a server that may take its time to listen.

    It stays bound as long as this process lives, so that nobody else is given it; who sets SO_REUSEADDR, as
    servers do, can listen there all the same.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    port = reservation.getsockname()[1]
    reservation.detach()
    return port


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id that is no zombie."""
    import psutil  # noqa: PLC0415 - tasks import this module, also where psutil is not installed

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], T], timeout: float, what: Callable[[], str] | str) -> T:
    """Poll until the condition is true and return what it returned; `what` describes the wait that failed."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        last = waited >= timeout  # known before: who stalls meanwhile looks once more
        if value := condition():
            return value
        if last:
            raise TimeoutError(f"waited {timeout} s for {what() if callable(what) else what}")
        time.sleep(min(max(FIRST_LOOKS, waited / 10), LATER_LOOKS))
