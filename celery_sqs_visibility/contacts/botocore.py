"""Contacts with botocore's clients, which are given: this room imports nothing of botocore."""

from __future__ import annotations

from queue import Empty
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


def registrations_of(client: Any) -> object | None:
    """An object that is another one after each registration of a listener to a client's events.

    botocore looks up listeners once an event, in a dict that it replaces (botocore/hooks.py: `_emitter`,
    `_lookup_cache`). `None` where there is none, and where somebody wants to see the client's own requests,
    which may be so from any moment on: then there are no fast requests. botocore's method that makes them is
    a plain function, of a decorator in botocore (botocore/client.py: `_make_api_call`); OpenTelemetry,
    ddtrace and X-Ray put an object there that wraps it.
    """
    function: Any = getattr(type(client), "_make_api_call", None)
    own = type(function) is FunctionType and function.__globals__.get("__name__", "").startswith("botocore.")
    return client.meta.events._emitter._lookup_cache if own else None


def is_listened_to(client: Any, action: str) -> bool:
    """Whether the signing or sending of a client's requests for an action of SQS has listeners.

    botocore has a public way to call listeners, and none to ask for them (botocore/hooks.py: `_handlers`).
    Without it listeners would not hear of requests that botocore neither signs nor sends.
    """
    search = client.meta.events._emitter._handlers.prefix_search
    return any(search(f"{event}.sqs.{action}") for event in ("before-sign", "before-send"))


def is_mocked(client: Any, action: str) -> bool:
    """Return whether a client's requests for an action of SQS may be answered before botocore makes them.

    A Stubber (botocore/stub.py) answers at `before-call`, where botocore itself only adds headers
    (botocore/hooks.py: `_handlers`). Tests also replace the method that makes requests (botocore/client.py:
    `_make_api_call`) by one of their own; a tracer's wraps it.
    """
    if registrations_of(client) is None and not hasattr(type(client)._make_api_call, "__wrapped__"):
        return True
    listeners = client.meta.events._emitter._handlers.prefix_search(f"before-call.sqs.{action}")
    return any(getattr(each, "__module__", None) != "botocore.handlers" for each in listeners)


class IdleConnections:
    """Connections of a client's that are open and idle, until the client is closed. Any thread.

    botocore has them in pools of urllib3, which have no public way to lend one (botocore/httpsession.py:
    `_manager`, `_proxy_config`; urllib3/connectionpool.py: `pool`, `_put_conn`). Without them there are no
    fast requests. Where a proxy stands between, none is ever idle.

    Args:
        session: a client's `http_session_of`.
        url: the endpoint of all its requests.
    """

    def __init__(self, session: Any, url: str) -> None:
        from urllib3.util.connection import is_connection_dropped  # noqa: PLC0415 - comes with the first client

        self.is_dropped = is_connection_dropped
        proxy = session._proxy_config.proxy_url_for(url)
        self._manager = session._manager if proxy is None else None
        self._url = url
        self._pool: Any = None

    def take(self) -> Any:
        """One of them, with `sock`, whose timeout is the client's; `None` where there is none.

        None is made here: botocore tells a connection its certificates when it makes a request.
        """
        if self._manager is None:
            return None
        if self._pool is None:
            self._pool = self._manager.connection_from_url(self._url)
        try:
            connection = self._pool.pool.get(block=False)
        except (Empty, AttributeError):  # all are in use; or the pool is closed
            return None
        if connection is not None and connection.sock is not None:
            if not self.is_dropped(connection):
                return connection
            connection.close()
        self._pool._put_conn(connection)
        return None

    def give_back(self, connection: Any) -> None:
        """Let other requests use a connection. One that is closed is opened again by the client."""
        self._pool._put_conn(connection)
