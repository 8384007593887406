"""pytest-celery's set-up: moto or LocalStack as broker, Redis as backend, real workers.

Nodes are processes of this machine, unless SQS_TEST_NODES=docker asks for pytest-celery's own containers.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2e import tasks
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    LOCALSTACK_CREDS,
    LOCALSTACK_ENV,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryWorkerContainer,
)
from pytest_docker_tools import build, container, fxtr
from support.app import close_app
from support.emulator import MotoServer
from support.nodes import LocalProcess, MotoContainer, RedisProcessContainer, WorkerProcessContainer
from support.redis_server import RedisServer, redis_program

ROOT = Path(__file__).resolve().parents[2]
ON_DOCKER = os.environ.get("SQS_TEST_NODES", "process") == "docker"
VISIBILITY_TIMEOUT = 10
START_SECONDS = 60


@pytest.fixture(scope="session", autouse=True)
def localstack_credentials(credentials):
    """LocalStack takes any credentials, and tells accounts apart by them: the test's are the workers'."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LOCALSTACK_CREDS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def celery_broker_cluster(celery_localstack_broker):
    """SQS only: pytest-celery's default would try every broker it knows."""
    cluster = CeleryBrokerCluster(celery_localstack_broker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def celery_backend_cluster(celery_redis_backend):
    cluster = CeleryBackendCluster(celery_redis_backend)
    yield cluster
    cluster.teardown()


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return {*default_worker_tasks, tasks}


@pytest.fixture
def default_worker_env(default_worker_env):
    return {**default_worker_env, **LOCALSTACK_CREDS}


@pytest.fixture
def default_worker_app(default_worker_app):
    """The settings of worker and test. They reach the worker as source text: JSON values only."""
    default_worker_app.conf.update(
        broker_transport="celery_sqs_visibility",
        broker_transport_options={
            "region": LOCALSTACK_CREDS["AWS_DEFAULT_REGION"],
            "is_secure": False,
            "visibility_timeout": VISIBILITY_TIMEOUT,
            "wait_time_seconds": 2,
        },
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        result_extended=True,
    )
    yield default_worker_app
    close_app(default_worker_app)


@pytest.fixture
def other_worker(default_worker_cls, other_worker_container, default_worker_app):
    """A second worker on the same queue, for tests that ask for two."""
    worker = default_worker_cls(container=other_worker_container, app=default_worker_app)
    yield worker
    worker.teardown()


if ON_DOCKER:

    @pytest.fixture
    def default_localstack_broker_image():
        return "localstack/localstack:4.14.0"  # later ones want an account

    @pytest.fixture
    def default_localstack_broker_env():
        # Queue URLs must have the host the caller used: a worker's is not the test's.
        return {**LOCALSTACK_ENV, "SQS_ENDPOINT_STRATEGY": "dynamic"}

    celery_base_worker_image = build(path=str(ROOT), dockerfile="tests/e2e/Dockerfile")
    other_worker_container = container(
        image="{celery_base_worker_image.id}",
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=CeleryWorkerContainer,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )

else:

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
    def default_localstack_broker(start_process, tmp_path):
        server = MotoServer(tmp_path)
        return start_process(MotoContainer, "moto", server.command, port=server.port)

    @pytest.fixture
    def default_redis_backend(start_process, tmp_path):
        if redis_program() is None:
            pytest.fail("redis-server, the result backend of these tests, is not on PATH: install it")
        server = RedisServer(tmp_path)
        return start_process(RedisProcessContainer, "redis", server.command, port=server.port)

    @pytest.fixture
    def start_worker_process(
        start_process, tmp_path, default_worker_command, default_worker_env, default_worker_initial_content
    ):
        def start(name):
            directory = tmp_path / name
            for path, source in default_worker_initial_content.items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_bytes(source)
            import_paths = (str(directory), str(ROOT), os.environ.get("PYTHONPATH", ""))
            env = {**default_worker_env, "PYTHONPATH": os.pathsep.join(filter(None, import_paths))}
            return start_process(WorkerProcessContainer, name, default_worker_command, env=env)

        return start

    @pytest.fixture
    def default_worker_container(start_worker_process):
        return start_worker_process("worker")

    @pytest.fixture
    def other_worker_container(start_worker_process):
        return start_worker_process("other-worker")

    @pytest.fixture
    def default_worker_container_cls():
        return WorkerProcessContainer

    @pytest.fixture(scope="session")
    def default_worker_container_session_cls():
        return WorkerProcessContainer
