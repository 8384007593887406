"""A check that an endpoint accepts connections. It makes no request, so it needs no permission."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from celery_sqs_visibility.contacts.botocore import is_mocked
from celery_sqs_visibility.errors import UnreachableError

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def connect(client: SQSClient) -> None:
    """Open and close a TCP connection to the client's endpoint or its proxy. Blocks.

    Raises:
        UnreachableError: nobody accepts it within the client's `connect_timeout`.
    """
    endpoint, config = client.meta.endpoint_url, cast("Any", client.meta.config)
    if _is_answered_here(client, endpoint):
        return
    proxy = _proxy(client, endpoint)
    parts = urlsplit(proxy or endpoint)
    host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), config.connect_timeout).close()
    except OSError as error:
        through = f" through the proxy at {host}:{port}" if proxy else f" at {host}:{port}"
        sentence = f"SQS cannot be reached{through}: {error}"
        raise UnreachableError(sentence, code="EndpointConnectionError", action="connect") from error


def _proxy(client: SQSClient, endpoint: str) -> str | None:
    """Return the proxy's URL as botocore/endpoint.py does: from `client-config`, else the environment."""
    from botocore.httpsession import ProxyConfiguration  # noqa: PLC0415 - see client_factory
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    given = getattr(client.meta.config, "proxies", None)
    proxies = get_environ_proxies(endpoint) if given is None else given
    found: str | None = ProxyConfiguration(proxies).proxy_url_for(endpoint)
    return found


def _is_answered_here(client: SQSClient, endpoint: str) -> bool:
    """Return whether mocks or listeners answer the client's requests, so that there may be no network."""
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - see client_factory

    if is_mocked(client, "SendMessage"):
        return True
    # Ask listeners about an action that changes nothing. Moto's looks for the slash, which all requests have.
    url = f"{endpoint.rstrip('/')}/"
    request = AWSRequest("POST", url, {"X-Amz-Target": "AmazonSQS.ListQueues"}, b"{}").prepare()
    heard = client.meta.events.emit("before-send.sqs.ListQueues", request=request)
    return any(answer is not None for _, answer in heard)
