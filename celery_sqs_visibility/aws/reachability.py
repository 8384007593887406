"""Whether an endpoint takes connections: a look without a request, for which nobody needs a permission."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from celery_sqs_visibility.contacts.botocore import is_mocked
from celery_sqs_visibility.errors import UnreachableError

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_PORTS: Final = {"http": 80, "https": 443}

#: A listener that answers requests in SQS's place is asked for an action that changes nothing.
_TARGET: Final = "AmazonSQS.ListQueues"

#: A connection is opened for this action most of all.
_PUBLICATION: Final = "SendMessage"


def connect(client: SQSClient) -> None:
    """Open a TCP connection to the client's endpoint, or to the proxy before it, and close it. Blocks.

    Raises:
        UnreachableError: nobody takes it within the client's `connect_timeout`.
    """
    endpoint, config = client.meta.endpoint_url, cast("Any", client.meta.config)
    if _is_answered_here(client, endpoint):
        return
    proxy = _proxy(client, endpoint)
    parts = urlsplit(proxy or endpoint)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, _PORTS["https"])
    try:
        socket.create_connection((host, port), config.connect_timeout).close()
    except OSError as error:
        through = f" through the proxy at {host}:{port}" if proxy else f" at {host}:{port}"
        sentence = f"SQS cannot be reached{through}: {error}"
        raise UnreachableError(sentence, code="EndpointConnectionError", action="connect") from error


def _proxy(client: SQSClient, endpoint: str) -> str | None:
    """As botocore finds it (botocore/endpoint.py): in `client-config`, else in the environment."""
    from botocore.httpsession import ProxyConfiguration  # noqa: PLC0415 - see client_factory
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    given = getattr(client.meta.config, "proxies", None)
    proxies = get_environ_proxies(endpoint) if given is None else given
    found: str | None = ProxyConfiguration(proxies).proxy_url_for(endpoint)
    return found


def _is_answered_here(client: SQSClient, endpoint: str) -> bool:
    """Return whether mocks or listeners answer the client's requests: there may be no network."""
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - see client_factory

    if is_mocked(client, _PUBLICATION):
        return True
    url = f"{endpoint.rstrip('/')}/"  # as in all requests for SQS: moto looks for the slash
    request = AWSRequest("POST", url, {"X-Amz-Target": _TARGET}, b"{}").prepare()
    heard = client.meta.events.emit("before-send.sqs.ListQueues", request=request)
    return any(answer is not None for _, answer in heard)
