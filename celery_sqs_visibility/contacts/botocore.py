"""Contacts with botocore's clients. They are arguments: this room does not import botocore."""

from __future__ import annotations

from queue import Empty
from types import FunctionType
from typing import Any


def http_session_of(client: Any) -> Any:
    """Return what makes a client's HTTP requests (`BaseClient._endpoint.http_session`).

    It has the connections, TLS, proxies and timeouts. Without it there are no fast requests: the client makes
    all requests (botocore/client.py, botocore/endpoint.py).
    """
    return client._endpoint.http_session


def add_socket_options(client: Any, options: list[tuple[int, int, int]]) -> None:
    """Add options for sockets that a client opens from now on (botocore/httpsession.py: `_socket_options`).

    botocore has no public setting for them. Does nothing if botocore has no such list: a connection that died
    silently is then noticed only when an answer is overdue.
    """
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    theirs = getattr(session, "_socket_options", None)
    if isinstance(theirs, list):
        theirs += options


def registrations_of(client: Any) -> object | None:
    """Return an object that is replaced whenever a listener to a client's events is registered.

    It is the dict in which botocore caches the listeners of each event (botocore/hooks.py: `_emitter`,
    `_lookup_cache`). `None` if a tracer wraps the client's own requests, which may happen at any time: then
    there must be no fast requests. botocore's method is a plain function, made by a decorator in botocore
    (botocore/client.py: `_make_api_call`); OpenTelemetry, ddtrace and X-Ray wrap it in an object.
    """
    function: Any = getattr(type(client), "_make_api_call", None)
    own = type(function) is FunctionType and function.__globals__.get("__name__", "").startswith("botocore.")
    return client.meta.events._emitter._lookup_cache if own else None


def is_listened_to(client: Any, action: str) -> bool:
    """Return whether anybody listens to the signing or sending of a client's requests for an SQS action.

    botocore can call its listeners, but has no public way to list them (botocore/hooks.py: `_handlers`).
    Without this they would not hear of requests that botocore neither signs nor sends.
    """
    search = client.meta.events._emitter._handlers.prefix_search
    return any(search(f"{event}.sqs.{action}") for event in ("before-sign", "before-send"))


def is_mocked(client: Any, action: str) -> bool:
    """Return whether a client's requests for an action of SQS may be answered before botocore makes them.

    A Stubber (botocore/stub.py) answers at `before-call`, where botocore's own listeners only add headers
    (botocore/hooks.py: `_handlers`). Tests also replace the method that makes requests (botocore/client.py:
    `_make_api_call`); a tracer's replacement has `__wrapped__`.
    """
    if registrations_of(client) is None and not hasattr(type(client)._make_api_call, "__wrapped__"):
        return True
    listeners = client.meta.events._emitter._handlers.prefix_search(f"before-call.sqs.{action}")
    return any(getattr(each, "__module__", None) != "botocore.handlers" for each in listeners)


class IdleConnections:
    """A client's open and idle connections, until it is closed. Any thread.

    botocore keeps them in urllib3's pools, which have no public way to lend one (botocore/httpsession.py:
    `_manager`, `_proxy_config`; urllib3/connectionpool.py: `pool`, `_put_conn`). Without them there are no
    fast requests. Behind a proxy there are none.

    Args:
        session: the client's `http_session_of`.
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
        """Take a connection whose `sock` has the client's timeout. Returns `None` if none is idle.

        Opens none: botocore sets a connection's certificates when it makes a request.
        """
        if self._manager is None:
            return None
        if self._pool is None:
            self._pool = self._manager.connection_from_url(self._url)
        try:
            connection = self._pool.pool.get(block=False)
        except (Empty, AttributeError):  # all are in use, or the pool is closed
            return None
        if connection is not None and connection.sock is not None:
            if not self.is_dropped(connection):
                return connection
            connection.close()
        self._pool._put_conn(connection)
        return None

    def give_back(self, connection: Any) -> None:
        """Put a connection back into the pool. If it is closed, the client opens it again."""
        self._pool._put_conn(connection)
