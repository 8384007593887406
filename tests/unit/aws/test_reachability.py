"""Whether an endpoint takes connections: seen without a request, by way of the client's own proxy."""

import socket

import pytest
from support.processes import free_port

from celery_sqs_visibility.aws import boto, client_factory
from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.errors import RequestRefusedError, UnreachableError

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}


@pytest.fixture
def listener():
    """A server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


def port_of(listener):
    return listener.getsockname()[1]


def sqs(port, **options):
    settings = ClientSettings("us-east-1", f"http://127.0.0.1:{port}", config=frozen_config(options), **KEYS)
    return BotoSQS(settings)


def test_an_endpoint_that_takes_a_connection_is_reached_once_for_a_while(listener, monkeypatch):
    reached = sqs(port_of(listener))
    for _ in range(3):
        reached.reach()
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1) == b"", "no request, and no TLS"
    monkeypatch.setattr(boto.os, "getpid", lambda: -1)
    reached.reach()  # a forked child looks itself
    listener.accept()[0].close()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_closed_port_is_out_of_reach_and_asked_again_each_time():
    port = free_port()
    dead = sqs(port)
    with pytest.raises(ConnectionError, match=rf"^SQS cannot be reached at 127\.0\.0\.1:{port}: .*refused"):
        dead.reach()
    with socket.create_server(("127.0.0.1", port)):
        dead.reach()


def test_behind_a_proxy_the_proxy_is_connected_to(listener):
    closed, proxy = free_port(), f"http://user:hush@127.0.0.1:{port_of(listener)}"
    sqs(closed, proxies={"http": proxy}).reach()
    listener.accept()[0].close()
    dead = sqs(port_of(listener), proxies={"http": f"http://user:hush@127.0.0.1:{closed}"})
    with pytest.raises(UnreachableError) as raised:
        dead.reach()
    assert f"SQS cannot be reached through the proxy at 127.0.0.1:{closed}" in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("exempt", [True, False])
def test_a_proxy_of_the_environment_is_heeded_and_so_are_its_exceptions(listener, monkeypatch, exempt):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if exempt else "elsewhere")
    if exempt:
        sqs(port_of(listener)).reach()
    else:
        with pytest.raises(UnreachableError, match="through the proxy"):
            sqs(port_of(listener)).reach()


def test_an_endpoint_whose_requests_a_listener_answers_is_reached_without_a_network(monkeypatch):
    def new_client(*args):
        client = client_factory.new_client(*args)
        client.meta.events.register("before-send.sqs", lambda request, **_: object())  # as moto's mocks
        return client

    with pytest.raises(UnreachableError):
        sqs(free_port()).reach()
    monkeypatch.setattr(boto, "new_client", new_client)
    sqs(free_port()).reach()


@pytest.mark.parametrize("region", ["nowhere-1", "not a region"])
def test_settings_that_lead_nowhere_are_told(region, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")  # nothing leaves this machine
    with pytest.raises(RequestRefusedError, match=region):
        BotoSQS(ClientSettings(region, **KEYS)).reach()
