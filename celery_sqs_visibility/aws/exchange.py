"""One HTTP request and its answer, over a connection from urllib3.

Most answers from SQS have a short head and a Content-Length. These are parsed here, others by `http.client`.
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

#: The head of a success, if the first read has all of it.
PLAIN_HEAD: Final = re.compile(rb"HTTP/1\.1 200 .*?\r\n\r\n", re.DOTALL)
LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)

#: Headers of answers that are chunked, or end the connection.
OTHERWISE: Final = re.compile(
    rb"\r\n(?:transfer-encoding:|connection:(?![ \t]*keep-alive[ \t]*\r\n))", re.IGNORECASE
)

#: The answer to a poll with ten messages is rarely longer.
BUFFER_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """An answer for botocore's parsers. `headers` is empty for a plain success."""

    status_code: int
    content: bytes
    headers: Mapping[str, str] | http.client.HTTPMessage
    keeps_connection: bool


def exchange(sock: Any, request: bytes) -> Answer:
    """Send a request and return its answer, within the socket's timeout. Any thread.

    Raises:
        OSError: the socket's; a TimeoutError if no answer came in time.
        http.client.HTTPException: the answer is not HTTP.
    """
    # A server may answer and close the connection before it has read the whole request.
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
    # Closed here, because its finalizer would complain about the closed stream (Python 3.13).
    with http.client.HTTPResponse(connection, method="POST") as response:
        response.begin()
        keeps_connection = not response.will_close
        try:
            content = response.read()
        except http.client.IncompleteRead as cut_off:
            if response.chunked:
                raise
            # As botocore, accept a part of an answer that has a Content-Length.
            content, keeps_connection = cut_off.partial, False
        return Answer(response.status, content, response.headers, keeps_connection)
