"""Contacts with botocore's clients, which are given: this room imports nothing of botocore."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def http_session_of(client: Any) -> Any:
    """The part of a client that makes HTTP requests (`BaseClient._endpoint.http_session`).

    It has connections, TLS, proxies and timeouts. Without it there are no fast requests, and the client makes
    all (botocore/client.py, botocore/endpoint.py).
    """
    return client._endpoint.http_session


def add_socket_options(client: Any, options: list[tuple[int, int, int]]) -> None:
    """Add options to the sockets that a client is yet to open (botocore/httpsession.py: `_socket_options`).

    botocore has no public setting for them. Where a version has no such list, nothing happens: a connection
    that died silently is then noticed when an answer is overdue.
    """
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    theirs = getattr(session, "_socket_options", None)
    if isinstance(theirs, list):
        theirs += options


def is_patched(client: Any) -> bool:
    """Whether anybody wants to see the client's requests, which may be so from any moment on.

    botocore's own method is a plain function, of a decorator in botocore (botocore/client.py:
    `_make_api_call`). OpenTelemetry, ddtrace and X-Ray put an object there that wraps it. Without this they
    would not see requests that the client does not make itself.
    """
    function: Any = getattr(type(client), "_make_api_call", None)
    own = type(function) is FunctionType and function.__globals__.get("__name__", "").startswith("botocore.")
    return not own
