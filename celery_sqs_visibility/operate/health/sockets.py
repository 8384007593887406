"""Where workers listen for probes of their own host: a Unix socket for each node, in a directory of the user.

The probe imports this, and is to start fast: so it imports next to nothing.
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
from typing import Final

SUFFIX: Final = ".sock"

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


def sockets(node: str | None = None) -> dict[str, str]:
    """Paths by the names of nodes' files: of all workers, or of one, given with or without its host."""
    try:
        _check_private(directory())
        files = sorted(os.listdir(directory()))
    except OSError:
        return {}
    names = [file.removesuffix(SUFFIX) for file in files if file.endswith(SUFFIX)]
    if node is not None:
        full = node.replace("%h", socket.gethostname())
        names = [name for name in names if name == name_of(full) or name.partition("@")[0] == full]
    return {name: _path(name) for name in names}


class ProbedSocket:
    """The listening socket of a node, which takes it over from an earlier process.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, node: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(directory(), 0o700)
        _check_private(directory())
        self._path = _path(name_of(node))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _turn():
                _remove_stale()
                # Bound where it stays: systemd-tmpfiles removes old sockets whose name at the time of their
                # binding is in use no more (/proc/net/unix has that name).
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
                self.socket.bind(self._path)
                self.socket.listen()
                self._file = _identity(self._path)
        except OSError:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the file, unless another process has taken the node over."""
        with suppress(OSError):
            if _identity(self._path) == self._file:
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


def _identity(path: str) -> tuple[int, int]:
    """A file's inode, whose number another may have later, and since when it has been there."""
    info = os.lstat(path)
    return info.st_ino, info.st_mtime_ns


def _path(name: str) -> str:
    return os.path.join(directory(), name + SUFFIX)


def _check_private(path: str) -> None:
    """Have nobody else's directory: another user may have made it first."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only user {os.getuid()} may enter: remove it")


def _remove_stale() -> None:
    """Remove the files of workers that were killed: nobody accepts there. It is this worker's turn."""
    for path in sockets().values():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                pass  # one that is busy
