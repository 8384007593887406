"""The server answers what routes say, keeps nobody waiting for others, and no forked child keeps its port."""

import os
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import EMFILE
from types import SimpleNamespace

import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility.operate import http_server
from celery_sqs_visibility.operate.http_server import (
    MAX_CONNECTIONS,
    HTTPListener,
    HTTPServer,
    Response,
    is_allowed_host,
    listener_at,
)


def broken():
    raise ZeroDivisionError


@pytest.fixture
def server():
    routes = {"/well": lambda: Response("well"), "/broken": broken}
    listener = HTTPListener(lambda: socket.create_server(("127.0.0.1", 0)), routes)
    listener.claim()
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


def test_a_client_that_sends_no_more_is_answered_before_its_headers_have_ended(server, monkeypatch):
    monkeypatch.setattr(http_server, "CLIENT_SECONDS", 10 * SOON)
    with socket.create_connection(server.address, timeout=SOON) as client:
        client.sendall(b"GET /well HTTP/1.1\r\n")
        client.shutdown(socket.SHUT_WR)
        assert client.makefile().read().endswith("\n\nwell")


def refuse():
    raise OSError(EMFILE, "many")


def test_a_connection_that_cannot_be_accepted_for_lack_of_descriptors_waits(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as bound:
        listener = HTTPListener(lambda: bound, {})
        listener.claim()
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_of_another_process_is_taken_when_it_is_free(host, monkeypatch):
    monkeypatch.setattr(http_server, "CLAIM_SECONDS", 0.01)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    other = socket.create_server((host, 0), family=family)
    port = other.getsockname()[1]
    listener = listener_at(host, port, {"/well": lambda: Response("well")})
    with pytest.raises(OSError, match="in use"):
        listener.claim()
    server = HTTPServer([listener])
    server.start()
    other.close()
    wait_until(lambda: listener.listens, SOON, "the port")
    listener.address = f"[{host}]" if ":" in host else host, port
    assert get(listener, "/well") == (200, "well")
    server.stop()
    server._thread.join(SOON)
    assert listener.fileno() == -1


def test_a_server_ends_while_another_process_has_its_port():
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = listener_at(*other.getsockname(), {})
        server = HTTPServer([listener])
        server.start()
        server.stop()
        server._thread.join(SOON)
        assert not listener.listens
        assert not server._thread.is_alive()


def slow(server):
    client = socket.create_connection(server.address)
    client.sendall(b"GET /well HTTP/1.1\r\nX: ")
    return client


def is_closed(client):
    client.settimeout(SOON)
    with suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


def test_the_oldest_of_too_many_connections_makes_place(server):
    clients = [slow(server) for _ in range(MAX_CONNECTIONS + 1)]
    assert is_closed(clients[0])
    assert get(server, "/well") == (200, "well")
    assert is_closed(clients[1])
    for client in clients:
        client.close()


@pytest.mark.parametrize("seconds", [0.5, 0])
def test_a_request_has_a_deadline_as_a_whole(server, monkeypatch, seconds):
    monkeypatch.setattr(http_server, "CLIENT_SECONDS", seconds)
    with slow(server) as client:
        over = threading.Event()

        def trickle():
            with suppress(OSError):
                while not over.wait(0.05):
                    client.sendall(b"x")

        with ThreadPoolExecutor(1) as threads:
            threads.submit(trickle)
            assert is_closed(client)
            over.set()


def test_while_answers_hang_new_connections_are_closed(server, monkeypatch):
    monkeypatch.setattr(http_server, "END_SECONDS", 0.01)
    hangs, ended = threading.Event(), threading.BoundedSemaphore(MAX_CONNECTIONS)
    begun = threading.Semaphore(0)

    def hang():
        begun.release()
        with ended:
            hangs.wait(SOON)
        return Response("well")

    server.routes["/hangs"] = hang
    clients = [socket.create_connection(server.address) for _ in range(MAX_CONNECTIONS)]
    for client in clients:
        client.sendall(b"GET /hangs HTTP/1.0\r\n\r\n")
        assert begun.acquire(timeout=SOON)
    with socket.create_connection(server.address) as late:
        assert is_closed(late)
    hangs.set()
    wait_until(lambda: get(server, "/well") == (200, "well"), SOON, "a place")
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example:80", b"403"), ("worker:80", b"200"), ("", b"200")]
)
def test_a_port_answers_by_its_own_names_only(host, status):
    listener = listener_at("127.0.0.1", 0, {"/well": lambda: Response("well")})
    listener.claim()
    server = HTTPServer([listener])
    server.start()
    with socket.create_connection(listener.server_address) as client:
        header = f"Host: {host}\r\n" if host else ""
        client.sendall(f"GET /well HTTP/1.1\r\n{header}\r\n".encode())
        client.settimeout(SOON)
        assert client.recv(4096).split()[1] == status
    server.stop()
    server._thread.join(SOON)


@pytest.mark.parametrize(
    "header",
    [
        "10.1.2.3:9540",
        "127.0.0.1",
        "[::1]:9540",
        "[fe80::1]",
        "localhost:9540",
        "worker:9540",
        "worker.proj.svc:9540",
        "worker.proj.svc.cluster.local:9540",
        "ip-10-0-0-1.eu-west-1.compute.internal",
        "Worker1.Example.com.",
        "",
    ],
)
def test_addresses_private_names_and_the_workers_own_are_allowed(header):
    assert is_allowed_host(header, ["worker1.example.com"])


@pytest.mark.parametrize(
    "header",
    ["evil.example", "worker1.example.com.evil.example:80", "notexample.org", "127.0.0.1.nip.io", "a.b:1:2"],
)
def test_other_public_names_are_not(header):
    assert not is_allowed_host(header, ["worker1.example.com"])
