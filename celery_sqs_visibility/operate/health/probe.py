"""The probe of this host's workers, and the Unix sockets at which they listen for it.

`celery-sqs-health` runs this module, and `celery -A proj sqs health` calls it. To start fast, it imports
little, and not Celery. The sockets are in a directory of the user, one for each process, because several
workers of a host may have the same node name.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import zlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from string import ascii_letters, digits
from typing import Any, Final, TextIO

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.policy.printable import printable

SECONDS: Final = 1.0

SUFFIX: Final = ".sock"

#: Separates the node's name and the process id in the name of a file. No node's file name contains it.
OF_PROCESS: Final = "~"

#: The path of a Unix socket has at most 107 bytes on Linux, most of which the directory takes.
MAX_NAME_CHARACTERS: Final = 48

SAFE: Final = frozenset(ascii_letters + digits + "@._-")


def directory() -> str:
    """The directory of this user's workers, which may not exist. Workers and probes need the same TMPDIR."""
    parent = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - its own is private
    return os.path.join(parent, f"celery-sqs-visibility-{os.getuid()}")


def name_of(node: str) -> str:
    """A file name for a node, unique among nodes."""
    safe = "".join(sign if sign in SAFE else "_" for sign in node)
    if safe == node and len(node) <= MAX_NAME_CHARACTERS:
        return node
    return f"{safe[:MAX_NAME_CHARACTERS]}-{zlib.crc32(node.encode()):08x}"


def sockets(node: str | None = None) -> list[tuple[str, str]]:
    """Pairs of file name and path, of all workers or of one node, given with or without its host."""
    try:
        _check_private(directory())
        files = sorted(os.listdir(directory()))
    except OSError:
        return []
    found = [(_node_of(file), os.path.join(directory(), file)) for file in files if file.endswith(SUFFIX)]
    if node is None:
        return found
    full = node.replace("%h", socket.gethostname())
    return [(name, path) for name, path in found if name == name_of(full) or name.partition("@")[0] == full]


def listen(node: str) -> socket.socket:
    """Open the listening socket of this process for its node.

    Raises:
        OSError: the directory cannot be used.
    """
    with suppress(FileExistsError):
        os.mkdir(directory(), 0o700)
    _check_private(directory())
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory_lock():
            _remove_stale()
            # Bound at its final path: systemd-tmpfiles removes old sockets whose name, when they were
            # bound, is no longer in use (/proc/net/unix has that name).
            listening.bind(_free_path(node))
            listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def remove(listening: socket.socket) -> None:
    """Remove the file of a socket while it still listens, so that it never looks like a killed worker's."""
    with suppress(OSError):
        os.unlink(listening.getsockname())


@contextmanager
def _directory_lock() -> Iterator[None]:
    """Let one worker at a time start to listen: none sees a socket that is bound but not listening."""
    lock = os.open(directory(), os.O_RDONLY)
    try:
        for _ in range(20):  # for a second
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            sleep(0.05)
        else:
            raise TimeoutError("another worker keeps its lock")  # it is suspended
        yield
    finally:
        os.close(lock)


def _free_path(node: str) -> str:
    """An unused path. Processes of two containers may share an id. The caller must hold the lock."""
    stem = os.path.join(directory(), f"{name_of(node)}{OF_PROCESS}{os.getpid()}")
    paths = (f"{stem}.{number}{SUFFIX}" if number else stem + SUFFIX for number in count())
    return next(path for path in paths if not os.path.lexists(path))


def _node_of(file: str) -> str:
    return file.removesuffix(SUFFIX).partition(OF_PROCESS)[0]


def _check_private(path: str) -> None:
    """Refuse a directory of another user, who may have created it first."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only user {os.getuid()} may enter: remove it")


def _remove_stale() -> None:
    """Remove the files of killed workers, at which nobody listens. The caller must hold the lock."""
    for _, path in sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                pass  # a busy one


#: Exit statuses, the same as for other commands; 69 is EX_UNAVAILABLE of sysexits.h.
WELL, UNWELL, NOBODY = 0, 1, 69


def ask(node: str | None, path: str, timeout: float) -> Iterator[dict[str, Any]]:
    """The answers of a node's workers, or all: `node`, `ok`, `reason` and more. The time limit is for all."""
    until = SYSTEM_CLOCK.monotonic() + timeout
    with ExitStack() as open_sockets:
        asked = []
        for name, address in sockets(node):
            connection = open_sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                _limit(connection, until)
                connection.connect(address)
                connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # it was killed, or has just ended
            except OSError:
                pass  # it has not accepted for so long that its backlog is full
            asked.append((name, connection))
        for name, connection in asked:
            yield _answer(name, connection, until, timeout)


def run(node: str | None, timeout: float, *, ready: bool, as_json: bool) -> int:
    """Print a line for each worker. Returns the exit status."""
    answers = list(ask(node, "/readyz" if ready else "/healthz", timeout))
    if not answers:
        with _closed_pipe_ignored(sys.stderr):
            print(_nobody(node), file=sys.stderr)
        return NOBODY
    with _closed_pipe_ignored(sys.stdout):
        if as_json:
            print(json.dumps(answers, indent=2))
        else:
            for answer in answers:
                print(printable(f"{answer['node']}: {answer['reason']}"))
    return WELL if all(answer["ok"] for answer in _without_replaced(answers)) else UNWELL


@contextmanager
def _closed_pipe_ignored(stream: TextIO) -> Iterator[None]:
    """Print to the stream. Ignore an error if its reader has gone, as with `head -1`."""
    try:
        try:
            yield
        finally:
            print(end="", file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # for Python's flush at exit, too


def _without_replaced(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers, less those of workers that are shutting down and have a successor of the same name."""
    staying = {answer["node"] for answer in answers if not _ends(answer)}
    return [answer for answer in answers if not _ends(answer) or answer["node"] not in staying]


def _ends(answer: dict[str, Any]) -> bool:
    return answer.get("phase") == "stopping"


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The options, which are those of `celery -A proj sqs health`."""
    parser = ArgumentParser(description="Ask the workers of this host how they are.")
    parser.add_argument("-n", "--node", help="the node to ask, as w1@host, w1@%%h or w1 (all workers)")
    parser.add_argument("--timeout", type=float, default=SECONDS, help="seconds (%(default)s)")
    parser.add_argument("--ready", action="store_true", help="whether it is ready, not whether it is alive")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """The console script."""
    with _closed_pipe_ignored(sys.stdout):  # of the help
        given = parse()
        sys.exit(run(given.node, given.timeout, ready=given.ready, as_json=given.json))


def _answer(name: str, connection: socket.socket, until: float, timeout: float) -> dict[str, Any]:
    received = b""
    try:
        _limit(connection, until)
        while part := connection.recv(65536):
            received += part
            _limit(connection, until)
        answer: dict[str, Any] = json.loads(received.partition(b"\r\n\r\n")[2])
    except OSError:
        return {"node": name, "ok": False, "reason": f"does not answer within {timeout:g} s"}
    except ValueError:
        return {"node": name, "ok": False, "reason": "cannot say how it is: see its log"}
    return answer


def _limit(connection: socket.socket, until: float) -> None:
    connection.settimeout(max(0.001, until - SYSTEM_CLOCK.monotonic()))


def _nobody(node: str | None) -> str:
    worker = "worker" if node is None else f"worker {node}"
    return f"no {worker} of user {os.getuid()} runs here (sockets in {directory()})"


if __name__ == "__main__":
    main()
