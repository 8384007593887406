"""An HTTP proxy between a worker and the emulator: it writes down every call, and breaks some.

The worker's `Host` header is forwarded, so the queue URLs SQS answers with point at the proxy again.
It serves HTTP/1.1 with keep-alive, one thread a connection, in the process of the test.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from support.faults import Answer, Disconnected, Fault, Forward, Injection, Request, decode
from support.processes import SOON, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

T = TypeVar("T")

STOP_SECONDS = 5


@dataclass(frozen=True)
class Call:
    """One API call, times by the monotonic clock.

    Attributes:
        finished: when the answer left, or `None` for a call in flight.
        answer: what the worker was answered; `None` for a call in flight or one that got no answer.
    """

    action: str
    queue: str | None
    started: float
    request: dict[str, Any]
    finished: float | None = None
    answer: Answer | None = None

    @property
    def status(self) -> int | None:
        """The answer's HTTP status."""
        return self.answer.status if self.answer else None

    @functools.cached_property
    def response(self) -> dict[str, Any]:
        """The decoded answer, empty if there was none. Decoded when first asked for: most never are."""
        return decode(self.answer.body, self.answer.headers.get("Content-Type", "")) if self.answer else {}


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


class FaultProxy:
    """The proxy before an emulator, `http://127.0.0.1:port`; a context manager. Any thread may call it."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self.upstream = (parts.hostname, parts.port)
        # Bound and never listening: keeps the port ours, and refusing, while the listener is closed.
        self._reservation = self._bound_socket(0)
        self.port = self._reservation.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock = threading.Lock()  # guards the three collections below
        self._calls: dict[object, Call] = {}
        self._injections: list[Injection] = []
        self._relays: dict[Relay, threading.Thread] = {}
        self._closing = threading.Event()
        self._acceptor: threading.Thread | None = None

    def calls(self, action: str | None = None, queue: str | None = None) -> list[Call]:
        """Finished calls, in the order they were made."""
        return [call for call in self._recorded(action, queue) if call.finished is not None]

    def in_flight(self, action: str | None = None, queue: str | None = None) -> list[Call]:
        """Calls that were made and not yet answered."""
        return [call for call in self._recorded(action, queue) if call.finished is None]

    def count(self, action: str | None = None, queue: str | None = None) -> int:
        """How many calls have finished."""
        return len(self.calls(action, queue))

    def clear(self) -> None:
        """Forget the finished calls."""
        with self._lock:
            self._calls = {key: call for key, call in self._calls.items() if call.finished is None}

    def wait_for(self, predicate: Callable[[list[Call]], T], timeout: float = SOON) -> T:
        """Poll `predicate(calls())` until it is true, and return what it returned."""
        return wait_until(
            lambda: predicate(self.calls()),
            timeout,
            lambda: (
                f"a predicate of the calls; finished were {Counter(call.action for call in self.calls())}"
            ),
        )

    def wait_for_calls(
        self, action: str, count: int = 1, *, queue: str | None = None, timeout: float = SOON
    ) -> list[Call]:
        """Wait until that many calls have finished, and return all of them."""
        self.wait_for(lambda _: self.count(action, queue) >= count, timeout)
        return self.calls(action, queue)

    def inject(
        self,
        fault: Fault,
        *actions: str,
        queue: str | None = None,
        times: int | None = None,
        rate: float = 1.0,
    ) -> Injection:
        """Have a fault (see `support.faults`) meet these actions, or all; only the first `times`, or a share.

        The share, `rate`, hits the same calls in every run. With `queue`, only calls that name it are hit.
        """
        injection = Injection(fault, actions, queue, times, rate)
        with self._lock:
            self._injections.append(injection)
        return injection

    def clear_faults(self) -> None:
        """Remove every fault; what it held goes on."""
        with self._lock:
            removed, self._injections = self._injections, []
        for injection in removed:
            injection.remove()

    def refuse(self) -> None:
        """Refuse connections and cut those that are open: SQS is down. Returns when it is. Idempotent."""
        if self._acceptor is None:
            return
        self._closing.set()
        self._acceptor.join(STOP_SECONDS)
        self._acceptor = None
        for relay in self._open_relays():
            relay.cut()

    def accept(self) -> None:
        """Take connections (again), on the same port. Idempotent."""
        if self._acceptor is not None:
            return
        listener = self._bound_socket(self.port)
        listener.listen(128)
        self._closing.clear()
        self._acceptor = threading.Thread(target=self._accept_all, args=(listener,), daemon=True)
        self._acceptor.start()

    def _answer(self, request: Request, forward: Forward) -> Answer:
        key = object()
        call = Call(request.action, request.queue, time.monotonic(), request.parameters)
        with self._lock:
            self._calls[key] = call
            injections = list(self._injections)
        try:
            answer = self._pass(injections, forward, request)
            call = replace(call, answer=answer)
        finally:
            with self._lock:
                self._calls[key] = replace(call, finished=time.monotonic())
        return answer

    def _pass(self, injections: Sequence[Injection], forward: Forward, request: Request) -> Answer:
        """Apply the first fault that takes the request; those behind it see what it lets through."""
        for position, injection in enumerate(injections, 1):
            if injection.take(request):
                return injection.apply(functools.partial(self._pass, injections[position:], forward), request)
        return forward(request)

    def _recorded(self, action: str | None, queue: str | None) -> list[Call]:
        with self._lock:
            recorded = list(self._calls.values())
        return [c for c in recorded if action in (None, c.action) and queue in (None, c.queue)]

    def _open_relays(self) -> dict[Relay, threading.Thread]:
        with self._lock:
            return dict(self._relays)

    def _accept_all(self, listener: socket.socket) -> None:
        listener.settimeout(0.05)  # to notice the end: closing a socket wakes no thread that waits on it
        with listener:
            while not self._closing.is_set():
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    continue
                relay = Relay(client, self.upstream, self._answer)
                thread = threading.Thread(target=self._serve, args=(relay,), daemon=True)
                with self._lock:
                    self._relays[relay] = thread
                thread.start()

    def _serve(self, relay: Relay) -> None:
        try:
            relay.serve()
        finally:
            with self._lock:
                del self._relays[relay]

    @staticmethod
    def _bound_socket(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the faults, cut every connection, and wait for the threads."""
        self.clear_faults()
        self.refuse()
        for thread in self._open_relays().values():
            thread.join(STOP_SECONDS)
        self._reservation.close()
