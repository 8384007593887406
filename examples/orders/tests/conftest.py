"""SQS as the broker of pytest-celery's set-up, and workers of this project's image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from celery import Celery
from pytest_docker_tools import build

from orders import tasks

pytest_plugins = ["celery_sqs_visibility.testing.pytest_celery"]

celery_base_worker_image = build(
    path=str(Path(__file__).parents[1]),
    tag="orders/tests",
    buildargs={name: os.environ[name] for name in ("BASE", "PIP_NO_INDEX") if name in os.environ},
)


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set) -> set:
    return {*default_worker_tasks, tasks}


@pytest.fixture
def default_worker_app(default_worker_app: Celery) -> Celery:
    options = default_worker_app.conf.broker_transport_options
    default_worker_app.conf.broker_transport_options = {**options, "visibility_timeout": 10}
    return default_worker_app
