"""What all requests of a boto3 client have in common, read off one that botocore made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.signature import ALGORITHM, Scope, authorization, signed_host, timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.awsrequest import AWSPreparedRequest
    from botocore.credentials import Credentials, ReadOnlyCredentials

#: What a request for SQS names as its target, before the action.
TARGET: Final = "AmazonSQS."

#: Headers that all requests of a client share.
SHARED: Final = frozenset({"content-type", "user-agent", "x-amzn-query-mode"})

#: Headers that each has of its own, and that `Form.fill` writes.
ITS_OWN: Final = frozenset(
    {"authorization", "content-length", "x-amz-date", "x-amz-security-token", "x-amz-target"}
)

#: What botocore counts its attempts in: SQS has no use for it.
LEFT_OUT: Final = frozenset({"amz-sdk-invocation-id", "amz-sdk-request"})

#: The shared header that is not signed, since proxies may change it.
UNSIGNED: Final = "user-agent"

AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} Credential=[^/]+/\d{{8}}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)


class Form:
    """The form of a client's requests: all but action, body, time and keys. Immutable.

    Args:
        request: one that botocore has signed, with the keys that `credentials` have now.
        credentials: of the client.

    Raises:
        ValueError: it is not understood in every part, or would be signed differently here; says why.

    Attributes:
        url: where the requests go.
    """

    def __init__(self, request: AWSPreparedRequest, credentials: Credentials) -> None:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        told = AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if told is None:
            raise ValueError("it is not signed as usual")
        if not headers.get("x-amz-target", "").startswith(TARGET):
            raise ValueError("it is of another protocol")
        if strange := headers.keys() - SHARED - ITS_OWN - LEFT_OUT:
            raise ValueError(f"it has a header {min(strange)!r}")
        self.url: str = request.url
        self._shared = {name: value for name, value in headers.items() if name in SHARED}
        self._host = signed_host(self.url)
        self._scope = Scope(told["region"], told["service"])
        signed = {name: headers.get(name, self._host) for name in told["signed"].split(";")}
        ours = self._authorization(signed, _bytes(request.body), credentials.get_frozen_credentials())
        if ours != headers["authorization"]:
            raise ValueError("its signature cannot be reproduced")

    def fill(self, action: str, body: bytes, credentials: Credentials, seconds: float) -> dict[str, str]:
        """The headers of a request with that body, made at so many seconds since the epoch."""
        keys = credentials.get_frozen_credentials()  # once: they may be renewed at any moment
        headers = {**self._shared, "x-amz-target": f"{TARGET}{action}", "x-amz-date": timestamp(seconds)}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        signed = {name: value for name, value in headers.items() if name != UNSIGNED}
        signed["host"] = self._host
        headers["authorization"] = self._authorization(signed, body, keys)
        return headers

    def _authorization(self, signed: Mapping[str, str], body: bytes, keys: ReadOnlyCredentials) -> str:
        return authorization(keys.access_key or "", keys.secret_key or "", self._scope, signed, body)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")
