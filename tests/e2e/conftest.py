"""pytest-celery's set-up on our vendor: SQS as broker, Redis as backend, real workers.

Nodes are processes of this machine, or containers with SQS_TEST_NODES=docker: the same tests on both.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from e2e import tasks
from pytest_celery import CeleryBackendCluster, CeleryWorkerContainer
from support.app import close_app
from support.emulator import MotoServer
from support.nodes import LocalProcess, RedisProcessContainer, SQSProcessContainer, WorkerProcessContainer
from support.redis_server import RedisServer, redis_program

from celery_sqs_visibility.testing.pytest_celery import *  # noqa: F403 - its fixtures, as users get them

ROOT = Path(__file__).resolve().parents[2]
ON_DOCKER = os.environ.get("SQS_TEST_NODES", "process") == "docker"
VISIBILITY_TIMEOUT = 10
START_SECONDS = 60


@pytest.fixture
def celery_backend_cluster(celery_redis_backend):
    cluster = CeleryBackendCluster(celery_redis_backend)
    yield cluster
    cluster.teardown()


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return {*default_worker_tasks, tasks}


@pytest.fixture
def settings():
    """Further settings of worker and test; JSON values only."""
    return {}


@pytest.fixture
def default_worker_app(default_worker_app, settings):
    conf = default_worker_app.conf
    conf.broker_transport_options = {
        **conf.broker_transport_options,
        "visibility_timeout": VISIBILITY_TIMEOUT,
    }
    conf.update(task_reject_on_worker_lost=True, worker_prefetch_multiplier=1, result_extended=True)
    conf.update(settings)
    yield default_worker_app
    close_app(default_worker_app)


@pytest.fixture
def stock_content(default_worker_initial_content):
    """The files of a worker of kombu's own transport."""
    ours, stock = b"'broker_transport': 'celery_sqs_visibility'", b"'broker_transport': 'sqs'"
    assert ours in default_worker_initial_content["app.py"]
    return {name: source.replace(ours, stock) for name, source in default_worker_initial_content.items()}


@pytest.fixture
def make_worker(
    default_worker_cls, make_worker_container, default_worker_initial_content, default_worker_app
):
    """`make_worker("name", content)`: another worker on the same queue, of other files if need be."""
    workers = []

    def make(name, content=None):
        found = make_worker_container(name, content or default_worker_initial_content)
        workers.append(default_worker_cls(container=found, app=default_worker_app))
        return workers[-1]

    yield make
    for worker in workers:
        worker.teardown()


if ON_DOCKER:
    from containers import engine
    from e2e.images import image

    class Image:
        def __init__(self, tag):
            self.id = tag

    @pytest.fixture(scope="session")
    def celery_base_worker_image():
        if reason := engine.missing():
            pytest.skip(reason)
        return Image(image())

    @pytest.fixture
    def default_sqs_broker_image(celery_base_worker_image):
        return celery_base_worker_image.id

    @pytest.fixture
    def default_redis_backend_image(celery_base_worker_image):
        return celery_base_worker_image.id

    @pytest.fixture
    def make_worker_container(
        docker_client,
        celery_base_worker_image,
        default_pytest_celery_network,
        default_worker_command,
        default_worker_env,
    ):
        started = []

        def make(name, content):
            raw = docker_client.containers.create(
                celery_base_worker_image.id,
                default_worker_command,
                environment=default_worker_env,
                network=default_pytest_celery_network.name,
                labels=[engine.LABEL_NAME],
            )
            started.append(raw)
            raw.put_archive("/app", _packed(content))
            raw.start()
            found = CeleryWorkerContainer(raw)
            raw.reload()
            assert found.ready()
            return found

        yield make
        for raw in started:
            raw.remove(force=True)

    def _packed(content):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, source in content.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(source)
                archive.addfile(entry, io.BytesIO(source))
        return packed.getvalue()

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
