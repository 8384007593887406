"""pytest-celery's set-up on our vendor: SQS as broker, Redis as backend, real workers.

Nodes are processes of this machine, or containers with SQS_TEST_NODES=docker: the same tests on both.
"""

import os

import pytest
from e2e import tasks
from pytest_celery import CeleryBackendCluster
from support.app import close_app

from celery_sqs_visibility.testing.pytest_celery import *  # noqa: F403 - its fixtures

if os.environ.get("SQS_TEST_NODES", "process") == "docker":
    from e2e.docker_nodes import *  # noqa: F403
else:
    from e2e.process_nodes import *  # noqa: F403

VISIBILITY_TIMEOUT = 10


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
