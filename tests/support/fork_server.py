"""Starts `python -m celery ...` by forking a process that has imported Celery and boto3.

These imports take half of the CPU time of a worker's start. Of the package the server imports only what
Celery and kombu load as plug-ins; each process imports the rest, the tasks and their settings anew. It
differs from one that was executed by its parent, and by its command line in /proc.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TESTS = Path(__file__).resolve().parents[1]
#: Where the server finds this module, and stand-ins for modules that no test needs.
SERVER_PATHS = (TESTS, TESTS / "tasks")
CELERY = [sys.executable, "-m", "celery"]
#: What every worker imports.
MODULES = (
    "boto3.session",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.utils.debug",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
)
#: Variables that the interpreter reads when it starts, and others when they are imported: a fork is too late.
READ_EARLY = ("PYTHON", "C_", "KOMBU_", "MP_", "REMAP_", "AUTOSCALE_", "PICKLE_")
#: But for these, which the fork heeds.
UNBUFFERED, PATH = "PYTHONUNBUFFERED", "PYTHONPATH"
#: These patch Python's own modules before anything else is imported.
PATCHING_POOLS = {"gevent", "eventlet"}
REQUEST_BYTES = 1 << 20
#: More than a server has open.
MAX_FILES = 1024
END_SECONDS = 10


def may_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork with that environment does what the command would."""
    return (
        list(command[: len(CELERY)]) == CELERY
        and not PATCHING_POOLS.intersection(command)
        and "COVERAGE_PROCESS_CONFIG" not in env
        and _read_early(env) == _read_early(os.environ)
    )


def _read_early(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(READ_EARLY) and name not in {UNBUFFERED, PATH}
    }


class ForkedProcess:
    """A forked process, with what tests use of `subprocess.Popen`. It has a session of its own.

    Args:
        command: one that `may_fork`.
        env: its environment.
        cwd: its directory; by default this process's.
        output: the file to which it prints.
        errors: the file of its errors; by default that of its output.
        typed: the file that it reads; by default it has no input.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        output: IO[bytes],
        errors: IO[bytes] | None = None,
        typed: IO[bytes] | None = None,
    ) -> None:
        arguments = command[len(CELERY) :]
        request = {"arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, Path(os.devnull).open("rb") as nothing:
            files = [each.fileno() for each in (typed or nothing, output, errors or output, theirs)]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        self.pid = int(self._answers.recv(REQUEST_BYTES))

    def poll(self) -> int | None:
        """The return code, minus the signal's number for a killed process; `None` while it runs."""
        return self._read(0)

    def wait(self, timeout: float) -> int:
        """Wait for the return code. Raises `subprocess.TimeoutExpired`."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(CELERY, timeout)
        return code

    def _read(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            # Nothing is said if the server was killed.
            self.returncode = int(self._answers.recv(REQUEST_BYTES) or -signal.SIGKILL)
            self._answers.close()
        return self.returncode


@functools.cache
def _server() -> socket.socket:
    """The socket to which requests go, of a server that ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
    command = [sys.executable, "-P", "-m", "support.fork_server", str(theirs.fileno())]
    env = {**os.environ, PATH: os.pathsep.join(map(str, SERVER_PATHS))}
    with theirs:
        server = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], start_new_session=True)

    def end() -> None:
        ours.close()
        server.wait(END_SECONDS)

    atexit.register(end)
    return ours


class Request(NamedTuple):
    """What a fork is to become."""

    arguments: list[str]
    env: dict[str, str]
    cwd: str


class Server:
    """Forks whenever it is asked to. Only a forked process returns from `serve`."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._events = selectors.DefaultSelector()
        self._events.register(requests, selectors.EVENT_READ)

    def serve(self) -> Request:
        gc.collect()
        gc.freeze()  # what all share is not touched by their collections
        while True:
            for key, _ in self._events.select():
                if key.data is not None:
                    self._tell_end(key.fd, *key.data)
                elif (request := self._fork()) is not None:
                    return request

    def _fork(self) -> Request | None:
        """Returns the request in the forked process."""
        said, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, 4)
        if not said:
            sys.exit()
        *standard, answers = files
        pid = os.fork()
        if not pid:
            os.setsid()
            for number, file in enumerate(standard):
                os.dup2(file, number)
            # Closed as what they are, so that nothing closes other files of these numbers later.
            self._events.close()
            self._requests.close()
            os.closerange(len(standard), MAX_FILES)
            return Request(**json.loads(said))
        for file in standard:
            os.close(file)
        os.write(answers, str(pid).encode())
        self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))
        return None

    def _tell_end(self, pidfd: int, pid: int, answers: int) -> None:
        self._events.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # who started it has gone
            os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(answers)


def become(request: Request, libraries: Sequence[str]) -> None:
    """Give this process what an interpreter has that was started so."""
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    os.chdir(request.cwd)
    unbuffered = bool(request.env.get(UNBUFFERED))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - for good
    sys.stdout = sys.__stdout__ = _writer(sys.stdout, 1, unbuffered=unbuffered, by_line=False)
    sys.stderr = sys.__stderr__ = _writer(sys.stderr, 2, unbuffered=unbuffered, by_line=not unbuffered)
    paths = [path for path in request.env.get(PATH, "").split(os.pathsep) if path]
    sys.path[:] = [request.cwd, *paths, *(path for path in libraries if path not in paths)]
    importlib.invalidate_caches()
    sys.argv[1:] = request.arguments
    sys.orig_argv[:] = [*CELERY, *request.arguments]


def _writer(like: Any, number: int, *, unbuffered: bool, by_line: bool) -> io.TextIOWrapper:
    file = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - for good
    how = {"encoding": like.encoding, "errors": like.errors, "line_buffering": by_line}
    return io.TextIOWrapper(file, write_through=unbuffered, **how)


def main() -> None:
    libraries = sys.path[len(SERVER_PATHS) :]
    sys.path.insert(0, str(TESTS.parent))  # the package is this one, wherever another may be installed
    for name in MODULES:
        importlib.import_module(name)
    request = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    become(request, libraries)
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
