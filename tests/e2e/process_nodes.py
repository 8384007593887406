"""Nodes of the pytest-celery tests as processes of this machine: a plug-in of pytest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.nodes import LocalProcess, RedisProcessContainer, SQSProcessContainer, WorkerProcessContainer
from support.redis_server import RedisServer, redis_program
from support.sqs_servers import MotoServer

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


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
