"""Nodes of the pytest-celery tests as containers of one image: a plug-in of pytest. No registry is needed."""

from __future__ import annotations

import io
import tarfile

import pytest
from containers import engine
from e2e.images import image
from pytest_celery import CeleryWorkerContainer


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
