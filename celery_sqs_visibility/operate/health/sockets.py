"""The Unix sockets at which workers listen for probes of their own host, in a directory of the user.

A socket belongs to a process: several workers of a host may have one node name. The probe imports this module
and must start fast, so this module imports next to nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final

SUFFIX: Final = ".sock"

#: Between the node's name and the process's id in the name of a file; no node's file name has it.
OF_PROCESS: Final = "~"

#: The longest path of a Unix socket has 107 bytes on Linux, and most are the directory's.
LONGEST_NAME: Final = 48

#: Another worker has the directory's lock for a moment.
LOCK_ATTEMPTS: Final = 20
LOCK_PAUSE_SECONDS: Final = 0.05

SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@._-")


def directory() -> str:
    """The directory of this user's workers, which may not exist. Worker and probe need the same TMPDIR."""
    parent = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - its own is private
    return os.path.join(parent, f"celery-sqs-visibility-{os.getuid()}")


def name_of(node: str) -> str:
    """A node's name as that of a file: two nodes have two."""
    safe = "".join(sign if sign in SAFE else "_" for sign in node)
    if safe == node and len(node) <= LONGEST_NAME:
        return node
    return f"{safe[:LONGEST_NAME]}-{zlib.crc32(node.encode()):08x}"


def sockets(node: str | None = None) -> list[tuple[str, str]]:
    """Pairs of a node's file name and a path: of all workers, or of those of a node.

    The node is named with or without its host.
    """
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


class ProbedSocket:
    """The listening socket of a process for its node.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, node: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(directory(), 0o700)
        _check_private(directory())
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _turn():
                _remove_stale()
                self._path = _free_path(node)
                # Bound where it stays: systemd-tmpfiles removes old sockets whose name at the time of their
                # binding is in use no more (/proc/net/unix has that name).
                self.socket.bind(self._path)
                self.socket.listen()
        except OSError:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the file, while the socket still listens: nobody takes it for a killed worker's."""
        with suppress(OSError):
            os.unlink(self._path)


@contextmanager
def _turn() -> Iterator[None]:
    """One worker at a time begins to listen: others see no socket that is bound, and accepts nobody yet."""
    lock = os.open(directory(), os.O_RDONLY)
    try:
        for _ in range(LOCK_ATTEMPTS):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            threading.Event().wait(LOCK_PAUSE_SECONDS)
        else:
            raise TimeoutError("another worker keeps its lock")  # it is suspended
        yield
    finally:
        os.close(lock)


def _free_path(node: str) -> str:
    """A path that no process has: one of another container may have the same id. It is this worker's turn."""
    stem = os.path.join(directory(), f"{name_of(node)}{OF_PROCESS}{os.getpid()}")
    paths = (f"{stem}.{number}{SUFFIX}" if number else stem + SUFFIX for number in count())
    return next(path for path in paths if not os.path.lexists(path))


def _node_of(file: str) -> str:
    return file.removesuffix(SUFFIX).partition(OF_PROCESS)[0]


def _check_private(path: str) -> None:
    """Have nobody else's directory: another user may have made it first."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only user {os.getuid()} may enter: remove it")


def _remove_stale() -> None:
    """Remove the files of workers that were killed: nobody accepts there. It is this worker's turn."""
    for _, path in sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                pass  # one that is busy
