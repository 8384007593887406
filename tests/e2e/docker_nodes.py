"""Nodes of the pytest-celery tests as containers of one image: a plug-in of pytest. No registry is needed."""

import io
import tarfile

import pytest
from containers import engine
from e2e.images import image
from pytest_celery import CeleryWorkerContainer, RedisContainer
from pytest_docker_tools import container, fxtr


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


class ReachableRedisContainer(RedisContainer):
    """One that a test finds from a container, too, where it is not at localhost."""

    @property
    def host_url(self):
        self._wait_port("6379/tcp")
        host, port = self.get_addr("6379/tcp")
        return f"{self.prefix()}{host}:{port}/{self.vhost}"


default_redis_backend = container(
    image="{default_redis_backend_image}",
    ports=fxtr("default_redis_backend_ports"),
    environment=fxtr("default_redis_backend_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=ReachableRedisContainer,
    timeout=60,
    command=fxtr("default_redis_backend_command"),
)


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
