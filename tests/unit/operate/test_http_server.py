"""The server answers what routes say, keeps nobody waiting for others, and no forked child keeps its port."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from errno import EMFILE
from types import SimpleNamespace

import pytest

from celery_sqs_visibility.operate import http_server
from celery_sqs_visibility.operate.http_server import HTTPServer, Listener, Response


def broken():
    raise ZeroDivisionError


@pytest.fixture
def server():
    routes = {"/well": lambda: Response("well"), "/broken": broken}
    listener = Listener(socket.create_server(("127.0.0.1", 0)), routes)
    server = HTTPServer([listener])
    server.start()
    server.address = listener.server_address
    server.routes = routes
    yield server
    server.stop()


def get(server, path):
    host, port = server.address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_route_answers_also_one_that_was_added_later(server):
    assert get(server, "/well?verbose") == (200, "well")
    server.routes["/later"] = lambda: Response("later", 503)
    assert get(server, "/later") == (503, "later")


def test_no_route_and_a_broken_one(server, caplog):
    assert get(server, "/") == (404, "there is no /, but: /well, /broken\n")
    assert get(server, "/broken")[0] == 500
    assert "unexpected error while answering GET /broken" in caplog.text


def test_a_client_that_says_nothing_keeps_nobody_waiting(server):
    with socket.create_connection(server.address):
        assert get(server, "/well") == (200, "well")


def refuse():
    raise OSError(EMFILE, "many")


def test_a_connection_that_cannot_be_accepted_for_lack_of_descriptors_waits(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as bound:
        listener = Listener(bound, {})
        naps = []
        monkeypatch.setattr(listener, "stopped", SimpleNamespace(wait=naps.append))
        monkeypatch.setattr(listener, "socket", SimpleNamespace(accept=refuse))
        with pytest.raises(OSError, match="many"):
            listener.get_request()
    assert naps == [http_server.RETRY_SECONDS]


def test_a_stopped_server_leaves_the_port_to_the_next(server):
    server.stop()
    server.stop()
    assert server._thread.join(5) is None
    socket.create_server(server.address).close()


def test_a_forked_child_does_not_keep_the_port(server):
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.read(reading, 1)
        os._exit(0)
    server.stop()
    server._thread.join(5)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address, timeout=5)
    finally:
        os.write(writing, b".")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
