"""Answers probes and scrapers over HTTP: at a Unix socket, and at a TCP port where one is wanted.

One thread waits for connections, without waking while nobody connects, and a short-lived one answers each, so
that a slow client keeps nobody waiting. Under gevent and eventlet both are greenlets: a blocked loop answers
nobody.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from weakref import WeakSet

from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.events import log_safely

logger = logging.getLogger(__name__)

#: A client that sends or takes nothing for so long is cut off.
CLIENT_SECONDS: Final = 5.0

JSON: Final = "application/json"

#: Errors of a machine or process that has too much open: the connection stays in the backlog.
TOO_MUCH_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

#: Until such a connection is accepted anew.
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Response:
    """What a route answers."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = JSON


#: By path, as in `/healthz`; called on a thread of the request's own.
Routes = Mapping[str, Callable[[], Response]]


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A socket that listens. It is closed in forked children, which would keep it open beyond this process.

    Args:
        bound: a bound socket.
        routes: looked up at each request, so that some may be added.

    Raises:
        OSError: it cannot listen.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    timeout = 0.0  # `handle_request` does not wait: the selector has

    def __init__(self, bound: socket.socket, routes: Routes) -> None:
        socketserver.BaseServer.__init__(self, bound.getsockname(), _Handler)
        self.socket = bound
        self.routes = routes
        self.stopped = threading.Event()
        self.server_activate()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. One that cannot be accepted just now would be tried anew at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in TOO_MUCH_OPEN:
                self.stopped.wait(RETRY_SECONDS)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """A client that went away, or no thread to answer it: it asks again."""
        log_safely(logger.debug, "a request over HTTP failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: Listener

    def do_GET(self) -> None:
        response = self._response(self.path.partition("?")[0])
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
        """Say nothing: a probe comes every few seconds."""


class HTTPServer:
    """Has a thread for its listeners from `start` to `stop`. Main thread."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._stopped, self._stop = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer from now on."""
        _started.add(self)
        self._thread = start_thread(self._serve, "sqs-http")

    def stop(self) -> None:
        """Answer nobody any more. Does not wait; harmless if it has stopped."""
        for listener in self._listeners:
            listener.stopped.set()
        self._stop.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopped:
                        self.close()
                        return
                    key.fileobj.handle_request()  # type: ignore[union-attr] # a listener

    def close(self) -> None:
        """Close everything. The thread that answers, or a forked child."""
        for listener in self._listeners:
            listener.server_close()
        self._stopped.close()
        self._stop.close()


_started: WeakSet[HTTPServer] = WeakSet()


def _close_inherited() -> None:
    for server in list(_started):
        server.close()


os.register_at_fork(after_in_child=_close_inherited)
