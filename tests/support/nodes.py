"""pytest-celery's nodes as local processes: what its containers need of Docker, without Docker.

`CeleryTestContainer` wraps one raw container and asks it for little: its name, whether it runs, what it
printed, signals, a restart. `LocalProcess` answers that for a process, so pytest-celery's own clusters,
set-ups and worker nodes work unchanged. Its network settings are empty on purpose: no port is mapped, so
pytest-celery waits for the ready prompt only.
"""

from __future__ import annotations

import os
import sys
import uuid
from signal import SIGCONT, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any

from pytest_celery import CeleryWorkerContainer, RedisContainer
from support.processes import GuardedProcess

from celery_sqs_visibility.testing.pytest_celery import SQSContainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class LocalProcess(GuardedProcess):
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
        command = [part.replace("%h", self.id[:12]) for part in command]
        super().__init__(command, directory / f"{name}.log", {**os.environ, **(env or {})}, directory)
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "127.0.0.1", "Env": [], "Labels": {}},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.running else "exited"

    def reload(self) -> None:
        """Nothing is cached."""

    def logs(self) -> bytes:
        return self.log.encode()

    def kill(self, signal: str = "SIGKILL") -> None:
        """SIGKILL ends all of it, as a container; any other signal goes to the main process, as Docker's."""
        if signal == "SIGKILL":
            self.stop()
        else:
            self.signal_main(Signals[signal])

    def restart(self, timeout: float = 10) -> None:
        self.kill("SIGTERM")
        try:
            self.wait_exit(timeout)
        except TimeoutError:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all of it."""
        self.signal_group(SIGSTOP)

    def unpause(self) -> None:
        self.signal_group(SIGCONT)


class _OfThisMachine:
    """A server that listens where its process was told to."""

    @property
    def port(self) -> int:
        return self._container.port

    @property
    def url(self) -> str:
        return self.host_url

    @property
    def host_url(self) -> str:
        return f"{self.prefix()}127.0.0.1:{self.port}"


class SQSProcessContainer(_OfThisMachine, SQSContainer):
    """A process of moto's server as the broker."""


class RedisProcessContainer(_OfThisMachine, RedisContainer):
    """A redis-server process as the result backend."""


class WorkerProcessContainer(CeleryWorkerContainer):
    """A worker process with the Celery of this interpreter."""

    @classmethod
    def command(cls, *args: str, **options: Any) -> list[str]:
        celery, *arguments = super().command(*args, **options)
        return [sys.executable, "-m", celery, *arguments]
