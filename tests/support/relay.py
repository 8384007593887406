"""HTTP/1.1, as much of it as a proxy for SQS needs: keep-alive, Content-Length bodies, `Host` as it came."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
from typing import TYPE_CHECKING

from support.faults import Answer, Disconnected, Forward, Request

if TYPE_CHECKING:
    from collections.abc import Callable

UPSTREAM_SECONDS = 60  # well over the longest long poll
# Of one connection, not of the message; the proxy writes its own.
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Relay:
    """One connection of a worker, which it closes, and the one to the emulator that serves it.

    `answer` gives a request its answer, by way of the function it is handed or without.
    """

    def __init__(
        self, client: socket.socket, upstream: tuple[str, int], answer: Callable[[Request, Forward], Answer]
    ) -> None:
        client.settimeout(None)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = answer
        self._client = client
        self._cut = False
        self._reader = client.makefile("rb")
        self._upstream = http.client.HTTPConnection(*upstream, timeout=UPSTREAM_SECONDS)

    def serve(self) -> None:
        """Answer requests until the worker, a fault or the proxy ends it."""
        try:
            while (request := self._read()) is not None:
                self._write(self._answer(request, self._forward))
                if request.headers.get("connection", "").lower() == "close":
                    break
        except Disconnected as end:
            if end.reset:
                # Lingering for zero seconds makes the close a reset.
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (OSError, http.client.HTTPException, ValueError):
            pass  # cut, by either side: the worker sees a closed connection
        finally:
            self._reader.close()
            self._client.close()
            self._upstream.close()

    def cut(self) -> None:
        """End both halves, from another thread; a read in progress returns at once."""
        self._cut = True
        for half in (self._client, self._upstream.sock):
            with contextlib.suppress(OSError, AttributeError):
                half.shutdown(socket.SHUT_RDWR)

    def _read(self) -> Request | None:
        line = self._reader.readline().decode("latin-1")
        if not line.strip():
            return None
        method, path, _ = line.split(" ", 2)
        headers = {}
        while line := self._reader.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Request(method, path, headers, self._reader.read(int(headers.get("content-length", 0))))

    def _forward(self, request: Request) -> Answer:
        headers = {**request.headers, "content-length": str(len(request.body))}
        reused = self._upstream.sock is not None
        try:
            self._upstream.request(request.method, request.path, request.body, headers)
            response = self._upstream.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            self._upstream.close()
            # The emulator may close an idle connection; after a cut, a second try would receive messages
            # that nobody gets.
            if self._cut or not reused:
                raise
            return self._forward(request)
        kept = {name: value for name, value in response.getheaders() if name.lower() not in HOP_HEADERS}
        return Answer(response.status, response.read(), kept)

    def _write(self, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unknown')}"]
        headers = {**answer.headers, "Content-Length": str(len(answer.body))}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body)
