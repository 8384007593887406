"""pytest-celery's nodes as local processes: what its containers need of Docker, without Docker.

`CeleryTestContainer` wraps one raw container and asks it for little: its name, whether it runs, what it
printed, signals, a restart. `LocalProcess` answers that for a process, so pytest-celery's own clusters,
set-ups and worker nodes work unchanged. Its network settings are empty on purpose: no port is mapped, so
pytest-celery waits for the ready prompt only.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

from pytest_celery import CeleryTestContainer, CeleryWorkerContainer, LocalstackContainer, RedisContainer
from support.processes import GuardedProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class LocalProcess:
    """A process that looks like a container of docker-py.

    `%h` in its command becomes the short id, as a container's host name would, so that two workers of one
    host do not share a node name.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.name = name
        self.id = uuid.uuid4().hex
        self.port = port
        self.process = GuardedProcess(
            [part.replace("%h", self.id[:12]) for part in command],
            directory / f"{name}.log",
            {**os.environ, **(env or {})},
            directory,
        )
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "127.0.0.1", "Env": [], "Labels": {}},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    def start(self) -> LocalProcess:
        self.process.start()
        return self

    @property
    def status(self) -> str:
        return "running" if self.process.running else "exited"

    def reload(self) -> None:
        """Nothing is cached."""

    def logs(self) -> bytes:
        return self.process.log.encode()

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL ends all of it, as a container; any other signal goes to the main process, as Docker's."""
        number = _signal_number(signal or "SIGKILL")
        if number == _signal_number("SIGKILL"):
            self.process.stop()
        else:
            self.process.signal_main(number)

    def restart(self, timeout: float = 10) -> None:
        self.kill("SIGTERM")
        if self.process.running:
            self._wait_or_kill(timeout)
        self.process.start()

    def pause(self) -> None:
        """Freeze all of it."""
        self.process.signal_group(signal.SIGSTOP)

    def unpause(self) -> None:
        self.process.signal_group(signal.SIGCONT)

    def remove(self) -> None:
        """End it, whatever state it is in. Idempotent."""
        self.process.stop()

    def _wait_or_kill(self, timeout: float) -> None:
        try:
            self.process.wait_exit(timeout)
        except TimeoutError:
            self.process.stop()


def _signal_number(name: str | int) -> int:
    return name if isinstance(name, int) else signal.Signals[name].value


def when_ready(container: CeleryTestContainer, timeout: float = 60) -> CeleryTestContainer:
    """Wait for the container's ready prompt; a process that ends instead is an error with its log.

    pytest-docker-tools does the same for containers before a fixture returns them.
    """

    def is_ready() -> bool:
        gone = container.status == "exited"
        if container.ready_prompt in container.logs():
            return True
        if gone:
            raise RuntimeError(f"{container.name} exited. Its log:\n{container.logs()}")
        return False

    wait_until(is_ready, timeout, lambda: f"{container.name} to be ready. Its log:\n{container.logs()}")
    return container


class MotoContainer(LocalstackContainer):
    """moto in LocalStack's place: an SQS broker at `sqs://127.0.0.1:port`."""

    @property
    def port(self) -> int:
        return self._container.port

    @property
    def url(self) -> str:
        return f"{self.prefix()}{self.hostname}:{self.port}"

    host_url = url

    @property
    def ready_prompt(self) -> str:
        return "Running on"


class RedisProcessContainer(RedisContainer):
    """A redis-server process as the result backend."""

    @property
    def port(self) -> int:
        return self._container.port

    @property
    def url(self) -> str:
        return f"{self.prefix()}{self.hostname}:{self.port}/{self.vhost}"

    host_url = url

    @classmethod
    def local_command(cls, server: str, port: int) -> list[str]:
        """What starts that server; the container's command is its name and options."""
        return [server, *cls.command()[1:], "--bind", "127.0.0.1", "--port", str(port)]


class WorkerProcessContainer(CeleryWorkerContainer):
    """A worker process with the Celery of this interpreter."""

    @classmethod
    def command(cls, *args: str, **options: Any) -> list[str]:
        celery, *arguments = super().command(*args, **options)
        return [sys.executable, "-m", celery, *arguments]
