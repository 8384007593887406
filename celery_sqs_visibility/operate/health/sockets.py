"""Where workers listen for probes of their own host: a Unix socket for each node, in a directory of the user.

The probe imports this, and is to start fast: so it imports next to nothing.
"""

from __future__ import annotations

import os
import socket
import stat
import zlib
from contextlib import suppress
from typing import Final

SUFFIX: Final = ".sock"

#: The longest path of a Unix socket has 107 bytes on Linux, and most are the directory's.
LONGEST_NAME: Final = 48

SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@._-")


def directory() -> str:
    """The directory of this user's workers, which may not exist. Worker and probe need the same TMPDIR."""
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a private one follows
    return os.path.join(temporary, f"celery-sqs-visibility-{os.getuid()}")


def name_of(node: str) -> str:
    """A node's name as that of a file: two nodes have two."""
    safe = "".join(sign if sign in SAFE else "_" for sign in node)
    if safe == node and len(node) <= LONGEST_NAME:
        return node
    return f"{safe[:LONGEST_NAME]}-{zlib.crc32(node.encode()):08x}"


def sockets(node: str | None = None) -> dict[str, str]:
    """Paths by the names of nodes' files: of all workers, or of that node, with or without its host's name."""
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
        _remove_stale()
        self._path = _path(name_of(node))
        new = self._path.removesuffix(SUFFIX) + ".new"
        with suppress(FileNotFoundError):
            os.unlink(new)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(new)
            self.socket.listen()
            self._inode = os.lstat(new).st_ino
            os.rename(new, self._path)
        except OSError:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the file, unless another process has taken the node over."""
        with suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:
                os.unlink(self._path)


def _path(name: str) -> str:
    return os.path.join(directory(), name + SUFFIX)


def _check_private(path: str) -> None:
    """Have nobody else's directory: another user may have made it first."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only user {os.getuid()} may enter: remove it")


def _remove_stale() -> None:
    """Remove the files of workers that were killed: nobody accepts there. None is seen before it listens."""
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
