"""HTTP server of a worker for probes and scrapers, on a Unix socket and, if one is set, a TCP port.

One thread waits for connections, and never wakes while nobody connects. Each connection has a short-lived
thread, so that a slow client delays nobody; above the limit the oldest is closed. Under gevent and eventlet
these are greenlets: if the loop is blocked, nobody is answered.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import socketserver
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from ipaddress import ip_address
from typing import Any, Final
from weakref import WeakSet

from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

logger = logging.getLogger(__name__)

#: Seconds for a client to send its request, and again to read the answer.
CLIENT_SECONDS: Final = 5.0

#: Simultaneous connections of one listener, each of which has a thread.
MAX_CONNECTIONS: Final = 16

#: Seconds for the thread of the oldest connection to end. If it does not, because the worker hangs, new
#: connections are closed.
END_SECONDS: Final = 0.5

#: Bytes of a request, headers included.
MAX_REQUEST_BYTES: Final = 16 * 1024

JSON: Final = "application/json"

#: Errors for lack of descriptors or memory: the connection stays in the backlog.
TOO_MUCH_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

#: How long to pause before such a connection is accepted.
RETRY_SECONDS: Final = 0.5

#: How long to pause between attempts to take a port that another process has, or to bind a socket.
CLAIM_SECONDS: Final = 5.0


#: Connections to a port that wait to be accepted.
PORT_BACKLOG: Final = 64

#: Ends of names that no public DNS has: RFC 6761, 6762 and 8375, ICANN's `.internal`, Kubernetes' services.
PRIVATE_ENDS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".svc")


@dataclass(frozen=True)
class Response:
    """The answer of a route."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = JSON


#: Functions by path, such as `/healthz`; each is called in the thread of its request.
Routes = Mapping[str, Callable[[], Response]]


class HTTPListener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A socket that listens once `claim` has opened it. Forked children close it, or they would keep it open.

    Args:
        open_socket: opens the listening socket, or raises an OSError while that is impossible.
        routes: functions that answer, by path.
        claimed: the log message for when `claim` succeeds at last.
        hosts: host names that clients may use (`is_allowed_host`); `None` for any.

    Attributes:
        listens: whether it listens; if not, `claim` is called until it does.
    """

    listens = False
    daemon_threads = True
    block_on_close = False
    timeout = 0.0  # `handle_request` does not wait: the selector did

    def __init__(
        self,
        open_socket: Callable[[], socket.socket],
        routes: Routes,
        claimed: str = "",
        hosts: Collection[str] | None = None,
    ) -> None:
        socketserver.BaseServer.__init__(self, ("", 0), _Handler)
        self._open_socket = open_socket
        self.routes = routes
        self.claimed = claimed
        self.hosts = hosts
        self.stopped = threading.Event()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: dict[socket.socket, None] = {}  # oldest first; changed atomically

    def claim(self) -> None:
        """Start to listen.

        Raises:
            OSError: the socket can't be opened yet.
        """
        self.socket = self._open_socket()
        self.server_address = self.socket.getsockname()
        self.listens = True

    def server_close(self) -> None:
        """Close the socket, if there is one."""
        if self.listens:
            super().server_close()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Pause if descriptors are lacking, or the selector would try again at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in TOO_MUCH_OPEN:
                self.stopped.wait(RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own. The accepting thread waits `END_SECONDS` for a free place."""
        if not self._places.acquire(blocking=False):
            self._end_oldest()
            if not self._places.acquire(timeout=END_SECONDS):
                self.shutdown_request(request)
                return
        self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # too many threads
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _end_oldest(self) -> None:
        with suppress(StopIteration, RuntimeError, OSError):  # it has just ended
            oldest = next(iter(self._open))
            self._open.pop(oldest, None)
            oldest.shutdown(socket.SHUT_RDWR)

    def _leave(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log that a client has gone, or that no thread could be started for it."""
        log_safely(logger.debug, "a request over HTTP failed", exc_info=True)


def listener_at(host: str, port: int, routes: Routes) -> HTTPListener:
    """A listener at a TCP port, which another process may have.

    Raises:
        OSError: the host does not exist.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    open_port = partial(socket.create_server, address, family=family, backlog=PORT_BACKLOG)
    hosts = {host, socket.gethostname()}
    return HTTPListener(open_port, routes, f"port {port} of http_address is free", hosts)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: HTTPListener

    def setup(self) -> None:
        """Read the head of the request, with one deadline for the whole head."""
        super().setup()
        self.rfile = BytesIO(_head_of(self.connection))

    def do_GET(self) -> None:
        self.connection.settimeout(CLIENT_SECONDS)  # for each of the two `sendall`
        allowed, given = self.server.hosts, self.headers.get_all("Host", ())
        refused = next((h for h in given if allowed is not None and not is_allowed_host(h, allowed)), None)
        if refused is None:
            response = self._response(self.path.partition("?")[0])
        else:
            sentence = (
                f"{refused!r} is not a host of this worker: name it in the transport option http_address\n"
            )
            response = Response(sentence, HTTPStatus.FORBIDDEN, "text/plain")
        body = response.body.encode()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _response(self, path: str) -> Response:
        route = self.server.routes.get(path)
        if route is None:
            paths = ", ".join(self.server.routes)
            return Response(f"there is no {path}, but: {paths}\n", HTTPStatus.NOT_FOUND, "text/plain")
        try:
            return route()
        except Exception:  # noqa: BLE001 - it is logged
            log_safely(logger.exception, "unexpected error while answering GET %s", path)
            return Response("see the worker's log\n", HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a probe comes every few seconds."""


def _head_of(connection: socket.socket) -> bytes:
    """The head of a client's request, up to the end of its headers.

    Raises:
        OSError: reading took too long, or the client has gone.
    """
    until = SYSTEM_CLOCK.monotonic() + CLIENT_SECONDS
    head = b""
    while len(head) < MAX_REQUEST_BYTES and b"\r\n\r\n" not in head and b"\n\n" not in head:
        if (left := until - SYSTEM_CLOCK.monotonic()) <= 0:
            raise TimeoutError("the request did not come in time")
        connection.settimeout(left)
        if not (received := connection.recv(4096)):
            break
        head += received
    return head


class HTTPServer:
    """A thread for listeners, each of which starts as soon as it can, from `start` to `stop`. Main thread."""

    def __init__(self, listeners: Sequence[HTTPListener]) -> None:
        self._listeners = listeners
        self._stopped, self._stop = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to answer requests."""
        _started.add(self)
        self._thread = start_thread(self._serve, "sqs-http")

    def stop(self) -> None:
        """Stop answering. Idempotent; does not wait."""
        for listener in self._listeners:
            listener.stopped.set()
        self._stop.close()

    def _serve(self) -> None:
        waiting = [each for each in self._listeners if not each.listens]
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for listener in self._listeners:
                if listener.listens:
                    selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(CLAIM_SECONDS if waiting else None):
                    if key.fileobj is self._stopped:
                        self.close()
                        return
                    key.fileobj.handle_request()  # type: ignore[union-attr] # a listener
                for claimed in filter(_claims, list(waiting)):
                    waiting.remove(claimed)
                    selector.register(claimed, selectors.EVENT_READ)

    def close(self) -> None:
        """Close everything. Called by the answering thread, or by a forked child."""
        for listener in self._listeners:
            listener.server_close()
        self._stopped.close()
        self._stop.close()


def _claims(listener: HTTPListener) -> bool:
    """Try to listen. Returns whether the listener listens now."""
    try:
        listener.claim()
    except OSError:
        return False
    log_safely(logger.info, "%s at last: HTTP requests are answered", listener.claimed)
    return True


_started: WeakSet[HTTPServer] = WeakSet()


def _close_inherited() -> None:
    for server in list(_started):
        server.close()


os.register_at_fork(after_in_child=_close_inherited)


def is_allowed_host(header: str, allowed: Collection[str]) -> bool:
    """Returns whether to answer a request with this header `Host`.

    By DNS rebinding a web page can point its own host name at an address in the browser's network and read
    the answers; the header still has the page's name. Addresses, and names that only the network's own DNS
    knows, are allowed, because Kubernetes' probes and Prometheus use them.
    """
    host = _without_port(header.strip()).rstrip(".").lower()
    if "." not in host or host.endswith(PRIVATE_ENDS) or _is_address(host):
        return True
    return any(host == name.rstrip(".").lower() for name in allowed)


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
