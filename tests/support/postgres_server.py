"""A PostgreSQL whose cluster is thrown away: the programs of Debian's package, as a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port
from support.programs import missing

if TYPE_CHECKING:
    from typing import Self

#: Debian keeps the server's programs out of `PATH`.
INSTALLED = Path("/usr/lib/postgresql")
#: Debian's package makes this user. The server refuses to run as root.
USER = "postgres"
START_SECONDS = 60


def postgres_programs() -> Path:
    """The directory of `initdb` and `postgres`; without them, the test ends here."""
    found = [each.parent for each in INSTALLED.glob("*/bin/postgres")]
    found += [Path(path).parent for path in [shutil.which("postgres")] if path]
    return found[0] if found else Path(missing("postgres"))


class PostgresServer(GuardedProcess):
    """A server with an empty database `name`, which trusts all; `start()` returns when it listens."""

    def __init__(self, directory: Path, name: str) -> None:
        self.port = free_port()
        self.name = name
        self._programs = postgres_programs()
        # Not below `directory`: pytest's directories are readable by their owner alone.
        self._cluster = Path(tempfile.mkdtemp(prefix="postgres-"))
        become = []
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            os.chown(self._cluster, user.pw_uid, user.pw_gid)
            become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._become = become
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
        }
        command = [*become, str(self._programs / "postgres"), "-D", str(self._cluster)]
        for key, value in options.items():
            command += ["-c", f"{key}={value}"]
        super().__init__(command, directory / "postgres.log", cwd=self._cluster)

    @property
    def address(self) -> str:
        """Where it is, as a URL has it after the scheme."""
        return f"{self.name}@127.0.0.1:{self.port}/{self.name}"

    def start(self) -> Self:
        self._run("initdb", "-D", str(self._cluster), "-U", self.name, "-A", "trust", "--no-sync")
        super().start().wait_for_log("ready to accept connections", START_SECONDS)
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", self.name, self.name)
        return self

    def stop(self) -> None:
        """Let it end, which removes its shared memory, and remove the cluster."""
        self.signal_main(signal.SIGINT)
        super().stop() if not self.running else self._end()
        shutil.rmtree(self._cluster, ignore_errors=True)

    def _end(self) -> None:
        try:
            self.wait_exit(10)
        finally:
            super().stop()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._become, str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self._cluster, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")
