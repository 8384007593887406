"""An app whose tasks the tests of the test kit run."""

import itertools

import pytest
from celery import Celery
from support.app import without_shared_tasks

from celery_sqs_visibility import VisibilityTask

NUMBERS = itertools.count()


@pytest.fixture
def app(monkeypatch):
    without_shared_tasks(monkeypatch)
    app = Celery(f"kit-{next(NUMBERS)}", task_cls=VisibilityTask, set_as_current=False)
    app.conf.update(
        broker_transport="celery_sqs_visibility",
        broker_transport_options={"coordination_store": "redis://nowhere"},
        task_default_queue="orders",
    )
    yield app
    app.close()
