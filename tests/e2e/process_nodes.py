"""Nodes of the pytest-celery tests as processes of this machine: a plug-in of pytest.

`CeleryTestContainer` wraps one raw container and asks it for little: its name, whether it runs, what it
printed, signals, a restart. `LocalProcess` answers that for a process, so pytest-celery's own clusters,
set-ups and worker nodes work unchanged. Its network settings are empty on purpose: no port is mapped, so
pytest-celery waits for the ready prompt only.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from signal import SIGCONT, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any

import pytest
from pytest_celery import CeleryWorkerContainer, RedisContainer
from support.processes import GuardedProcess
from support.redis_server import RedisServer, redis_program
from support.sqs_servers import MotoServer

from celery_sqs_visibility.testing.pytest_celery import SQSContainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


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


@pytest.fixture(scope="session")
def docker_client():
    """None: no image is looked for."""
    pytest.fail("a node is to be a container, and not a process: a fixture is not overridden")


@pytest.fixture
def start_process(tmp_path):
    """Start a `LocalProcess` in a directory of its own, ended after the test; its container, ready."""
    started = []

    def start(container_class, name, command, **options):
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        process = LocalProcess(name, command, directory, **options)
        started.append(process)
        container = container_class(process)
        process.start().wait_for_log(container.ready_prompt, START_SECONDS)
        return container

    yield start
    for process in reversed(started):
        process.stop()


@pytest.fixture
def default_sqs_broker(start_process, tmp_path):
    server = MotoServer(tmp_path)
    return start_process(SQSProcessContainer, "moto", server.command, port=server.port)


@pytest.fixture
def default_redis_backend(start_process, tmp_path):
    if redis_program() is None:
        pytest.fail("redis-server, the result backend of these tests, is not on PATH: install it")
    server = RedisServer(tmp_path)
    return start_process(RedisProcessContainer, "redis", server.command, port=server.port)


@pytest.fixture
def make_worker_container(start_process, tmp_path, default_worker_command, default_worker_env):
    def make(name, content):
        directory = tmp_path / name
        for path, source in content.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(source)
        import_paths = (str(directory), str(ROOT), os.environ.get("PYTHONPATH", ""))
        env = {**default_worker_env, "PYTHONPATH": os.pathsep.join(filter(None, import_paths))}
        return start_process(WorkerProcessContainer, name, default_worker_command, env=env)

    return make


@pytest.fixture
def default_worker_container(make_worker_container, default_worker_initial_content):
    return make_worker_container("worker", default_worker_initial_content)


@pytest.fixture
def default_worker_container_cls():
    return WorkerProcessContainer


@pytest.fixture(scope="session")
def default_worker_container_session_cls():
    return WorkerProcessContainer
