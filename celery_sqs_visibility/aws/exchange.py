"""One exchange of HTTP: a request that is ready to be sent, and its answer, over a connection of urllib3's.

Most answers of SQS have a short head and a length. They are read here; `http.client` reads all others.
"""

from __future__ import annotations

import http.client
import re
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping

#: The head of an answer that has succeeded, in one piece with the beginning of its body.
PLAIN_HEAD: Final = re.compile(rb"HTTP/1\.1 200 .*?\r\n\r\n", re.DOTALL)
LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)

#: Headers by which a body, or the connection, ends otherwise.
OTHERWISE: Final = re.compile(
    rb"\r\n(?:transfer-encoding:|connection:(?![ \t]*keep-alive[ \t]*\r\n))", re.IGNORECASE
)

#: Bytes read at once: the answer to a poll, with ten messages, is seldom longer.
BUFFER_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """An answer, as botocore's parsers read it. The headers of a plain success are left out."""

    status_code: int
    content: bytes
    headers: Mapping[str, str] | http.client.HTTPMessage
    keeps_connection: bool


def exchange(sock: Any, request: bytes) -> Answer:
    """Send a request, head and body, and read its answer. The socket has its timeout. Any thread.

    Raises:
        OSError: of the socket; it is a TimeoutError where no answer came in time.
        http.client.HTTPException: the answer is no HTTP.
    """
    # A server may refuse a request before it has all of it, and end the connection: its answer is there.
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(request)
    with sock.makefile("rb", BUFFER_BYTES) as stream:
        beginning = stream.peek()
        head = PLAIN_HEAD.match(beginning)
        length = head and not OTHERWISE.search(head[0]) and LENGTH.search(head[0])
        if not (head and length):
            return _read_by_http_client(stream)
        stream.read(head.end())
        body = stream.read(int(length[1]))
    return Answer(http.client.OK, body, {}, keeps_connection=len(body) == int(length[1]))


def _read_by_http_client(stream: io.BufferedReader) -> Answer:
    connection: Any = SimpleNamespace(makefile=lambda _mode: stream)
    # Closed here: its finalizer would find the stream closed, and say so (Python 3.13).
    with http.client.HTTPResponse(connection, method="POST") as response:
        response.begin()
        stays = not response.will_close
        try:
            content = response.read()
        except http.client.IncompleteRead as cut_off:
            if response.chunked:
                raise
            # botocore takes what there is of an answer with a length
            content, stays = cut_off.partial, False
        return Answer(response.status, content, response.headers, stays)
