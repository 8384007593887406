"""What watches a worker starts before it connects, once; the worker goes on without what it cannot have."""

import socket
from types import SimpleNamespace

import pytest
from celery import signals
from support.processes import SOON, wait_until

from celery_sqs_visibility.operate import http_server
from celery_sqs_visibility.operate.health.probe import ask
from celery_sqs_visibility.operate.worker_step import Operations
from celery_sqs_visibility.policy.options import Options


def transport(options):
    return SimpleNamespace(options=options, context=SimpleNamespace(options=options))


@pytest.fixture
def consumer(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("s")))
    return SimpleNamespace(
        hostname="w@h",
        controller=object(),
        connection=None,
        conninfo=SimpleNamespace(transport=transport(Options.parse({}))),
        blueprint=SimpleNamespace(state=1),
        connect=lambda: [each["reason"] for each in ask(None, "/healthz", 5)],
    )


@pytest.fixture
def started(consumer):
    """The step of a worker, which ends with the test."""
    step = Operations(consumer)
    step.create(consumer)
    yield step
    signals.worker_shutdown.send(sender=consumer.controller)


def test_it_answers_while_the_worker_connects_also_anew_and_no_more_after_its_end(consumer, started):
    assert consumer.connect() == consumer.connect() == ["live: starting"]
    signals.worker_shutdown.send(sender=object())  # another worker's
    assert consumer.connect() == ["live: starting"]
    signals.worker_shutdown.send(sender=consumer.controller)
    assert list(ask(None, "/healthz", 5)) == []


def test_without_a_place_for_its_socket_the_worker_goes_on_and_takes_one_later(
    consumer, started, monkeypatch, caplog, tmp_path_factory
):
    monkeypatch.setattr(http_server, "CLAIM_SECONDS", 0.01)
    monkeypatch.setenv("TMPDIR", "/proc")
    assert consumer.connect() == []
    assert "so celery sqs health finds no worker" in caplog.text
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("s")))
    wait_until(consumer.connect, SOON, "an answer")
    assert consumer.connect() == ["live: starting"]
    signals.worker_shutdown.send(sender=consumer.controller)
    assert consumer.connect() == []


@pytest.mark.parametrize(("host", "is_to_be_free"), [("127.0.0.1", True), ("no-such-host.invalid", False)])
def test_without_its_port_the_worker_goes_on(consumer, started, caplog, host, is_to_be_free):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = Options.parse({"http_address": f"{host}:{port}"})
        consumer.conninfo.transport = transport(options)
        assert consumer.connect() == ["live: starting"]
    assert f"the worker goes on without: http_address {host}:{port}: " in caplog.text
    assert ("it takes the port when that is free" in caplog.text) is is_to_be_free
