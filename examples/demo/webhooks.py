"""Somebody else's server: down twice, busy once, broken for good, or not there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

#: By path: the status of each call, and what Retry-After says. The last one repeats.
ANSWERS: dict[str, list[tuple[int, str | None]]] = {
    "/shaky": [(503, None), (503, None), (200, None)],
    "/busy": [(429, "2"), (200, None)],
    "/broken": [(500, None)],
    "/gone": [(404, None)],
}


class _Handler(BaseHTTPRequestHandler):
    calls: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()  # guards calls

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answers = ANSWERS[self.path]
        with self.lock:
            status, retry_after = answers[min(self.calls[self.path], len(answers) - 1)]
            self.calls[self.path] += 1
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Be quiet: stderr is the demo's."""


@contextmanager
def webhook_server() -> Iterator[str]:
    """Its URL, while the `with` block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="webhooks", daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
