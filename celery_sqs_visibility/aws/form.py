"""What all requests of a boto3 client have in common, read off one that botocore made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.signature import (
    ALGORITHM,
    Scope,
    authorization,
    signed_host,
    signing_key,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.awsrequest import AWSPreparedRequest
    from botocore.credentials import Credentials, ReadOnlyCredentials

#: What a request for SQS names as its target, before the action.
TARGET: Final = "AmazonSQS."

#: Headers that all requests of a client share. Proxies may change the one that is not signed.
SHARED_AND_SIGNED: Final = frozenset({"content-type", "x-amzn-query-mode"})
SHARED: Final = SHARED_AND_SIGNED | {"user-agent"}

#: Headers that each has of its own, and that `Form.fill` writes; and those of them that are signed.
SIGNED: Final = frozenset({"x-amz-date", "x-amz-security-token", "x-amz-target"})
ITS_OWN: Final = SIGNED | {"authorization", "content-length"}

#: What botocore counts its attempts in: SQS has no use for it.
LEFT_OUT: Final = frozenset({"amz-sdk-invocation-id", "amz-sdk-request"})

AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} Credential=[^/]+/\d{{8}}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)


class Form:
    """The form of a client's requests: all but action, body, time and keys. Any thread.

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
        # Where awscrt signs, it adds what any HTTP client adds later.
        if headers.pop("host", host := signed_host(request.url)) != host:
            raise ValueError("it goes to another host than it says")
        if strange := headers.keys() - SHARED - ITS_OWN - LEFT_OUT:
            raise ValueError(f"it has a header {min(strange)!r}")
        names = set(told["signed"].split(";"))
        if names - LEFT_OUT != {"host", *(headers.keys() & (SHARED_AND_SIGNED | SIGNED))}:
            raise ValueError("other parts of it are signed")
        self.url: str = request.url
        self._credentials = credentials
        self._scope = Scope(told["region"], told["service"])
        # As they were: a user agent may be text that only botocore's encoding turns into bytes.
        self._shared = {name: value for name, value in request.headers.items() if name.lower() in SHARED}
        self._signed = {"host": host}
        self._signed |= {name: value for name, value in headers.items() if name in SHARED_AND_SIGNED}
        # What the last secret and day were, and the key that they give.
        self._key: tuple[tuple[str, str], bytes] = ("", ""), b""
        keys = credentials.get_frozen_credentials()
        signed = {name: {**headers, **self._signed}[name] for name in names}
        if self._authorization(signed, _bytes(request.body), keys) != headers["authorization"]:
            raise ValueError("its signature cannot be reproduced")

    def fill(self, action: str, body: bytes, wall: Callable[[], float]) -> dict[str, Any]:
        """The headers of a request with that body, made when `wall` says (seconds since the epoch).

        Raises:
            Exception: what botocore raises where it cannot renew the keys.
        """
        keys = self._credentials.get_frozen_credentials()  # once: they may be renewed at any moment
        own = {"X-Amz-Target": f"{TARGET}{action}", "X-Amz-Date": timestamp(wall())}
        if keys.token:
            own["X-Amz-Security-Token"] = keys.token
        signed = self._signed | {name.lower(): value for name, value in own.items()}
        own["Authorization"] = self._authorization(signed, body, keys)
        own["Content-Length"] = str(len(body))
        return {**self._shared, **own}

    def _authorization(self, signed: Mapping[str, str], body: bytes, keys: ReadOnlyCredentials) -> str:
        key = self._signing_key(keys.secret_key or "", signed["x-amz-date"][:8])
        return authorization(keys.access_key or "", key, self._scope, signed, body)

    def _signing_key(self, secret: str, day: str) -> bytes:
        made_of, key = self._key  # once, and replaced whole: threads share it
        if made_of != (secret, day):
            key = signing_key(secret, self._scope, day)
            self._key = (secret, day), key
        return key


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")
