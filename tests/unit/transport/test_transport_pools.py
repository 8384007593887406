"""Celery's default limit of connections holds up no thread that publishes; the user's limit stays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery
from kombu import pools
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.transport import broker_clients, broker_context
from celery_sqs_visibility.transport.transport import CELERYS_POOL_LIMIT, POOL_LIMIT, raise_default_limit


@pytest.fixture(autouse=True)
def _pools():
    pools.reset()
    pools.set_limit(CELERYS_POOL_LIMIT)
    yield
    pools.reset()
    pools.set_limit(CELERYS_POOL_LIMIT)


class Gathering(FakeSQS):
    """Answers when all threads are sending."""

    def __init__(self):
        super().__init__()
        self.all_here = threading.Barrier(1)

    def send(self, *arguments):
        self.all_here.wait(SOON)
        return super().send(*arguments)


@pytest.fixture
def sqs(monkeypatch):
    sqs = Gathering()
    monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: sqs)
    monkeypatch.setattr(broker_context, "_contexts", {})
    monkeypatch.setattr(broker_context, "SharedRequests", lambda outgoing: outgoing)
    return sqs


def make_app(**settings):
    app = Celery("producer", broker="sqs://", broker_transport="celery_sqs_visibility", set_as_current=False)
    app.conf.broker_transport_options = {"region": "us-east-1"}
    app.conf.update(settings)
    return app


def test_more_threads_than_celerys_limit_publish_at_the_same_time(sqs):
    app = make_app()
    app.send_task("first")
    sqs.all_here = threading.Barrier(CELERYS_POOL_LIMIT + 6)
    with ThreadPoolExecutor(CELERYS_POOL_LIMIT + 6) as threads:
        list(threads.map(app.send_task, ["task"] * (CELERYS_POOL_LIMIT + 6)))
    assert len([action for action, _ in sqs.calls if action == "SendMessage"]) == CELERYS_POOL_LIMIT + 7


@pytest.mark.parametrize("limit", [0, 1, 9, 11, 100])
def test_a_limit_of_the_users_stays(sqs, limit):
    app = make_app(broker_pool_limit=limit)
    app.send_task("first")
    assert app.pool.limit == app.amqp.producer_pool.limit == limit


def test_pools_of_other_transports_stay(sqs):
    other = Celery("other", broker="memory://", set_as_current=False)
    other.send_task("first")
    app = make_app()
    app.send_task("first")
    raise_default_limit(type(app.connection_for_write().transport))
    assert (other.pool.limit, app.pool.limit) == (CELERYS_POOL_LIMIT, POOL_LIMIT)
