"""Forms of requests: one that botocore has signed, filled in again with another body and another time.

Of two requests for one action, only the body, the date, the length and the signature differ. botocore signs
the first of a day in full; of its canonical request the rest is filled in, and botocore's own `SigV4Auth`
makes the string to sign and the signature of that.
"""

from __future__ import annotations

import hashlib
from copy import copy
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from botocore.auth import SigV4Auth

#: The time of a request in its header and its signature (botocore/auth.py: `SIGV4_TIMESTAMP`), and its day.
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
DAY: Final = slice(8)

#: Headers that differ between two requests for one action.
VARYING_HEADERS: Final = frozenset({"authorization", "content-length", "host", "x-amz-date"})

#: Where the last part of an Authorization header begins.
SIGNATURE: Final = ", Signature="


class SignedForm:
    """A request without its body and time. Immutable; any thread.

    Args:
        auth: has signed the request.
        request: a signed AWSRequest.

    Raises:
        ValueError: filled in with its own time and body, it has another signature.
    """

    def __init__(self, auth: SigV4Auth, request: Any) -> None:
        self._credentials: Any = auth.credentials
        time = request.context.get("timestamp", "")
        self._day = time[DAY]
        canonical = auth.canonical_request(_before_signing(request))
        digest = hashlib.sha256(request.body).hexdigest()
        self._before_time, found, self._after_time = canonical.removesuffix(digest).partition(time or " ")
        headers = {name.lower(): value for name, value in request.prepare().headers.items()}
        self._authorization, mark, signature = headers.get("authorization", "").partition(SIGNATURE)
        self._fixed = _fixed_lines(request.url, auth.headers_to_sign(request)["host"], headers)
        signs_alike = mark and self._signature(auth, time, request.body) == signature
        if not (found and signs_alike and f"={auth.scope(request)}," in self._authorization):
            raise ValueError("the signature of the client's requests has an unknown form")

    def is_for(self, auth: SigV4Auth, time: str) -> bool:
        """Return whether requests at that time, with these credentials, have this form."""
        return time[DAY] == self._day and bool(auth.credentials == self._credentials)

    def filled_in(self, auth: SigV4Auth, time: str, body: bytes) -> bytes:
        """Return a request with that body, signed at that time: head and body, as they are sent."""
        varying = (
            f"X-Amz-Date: {time}\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: {self._authorization}{SIGNATURE}{self._signature(auth, time, body)}\r\n\r\n"
        )
        return self._fixed + varying.encode() + body

    def _signature(self, auth: SigV4Auth, time: str, body: bytes) -> str:
        at: Any = SimpleNamespace(context={"timestamp": time})  # all that is read of a request here
        digest = hashlib.sha256(body).hexdigest()
        text = auth.string_to_sign(at, f"{self._before_time}{time}{self._after_time}{digest}")
        return auth.signature(text, at)


def time_now() -> str:
    """Return the wall clock's time as a signature has it."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.wall(), timezone.utc).strftime(TIME_FORMAT)


def _before_signing(request: Any) -> Any:
    """Return a request as it was when it was signed. The signature covers all headers but its own."""
    unsigned = copy(request)
    unsigned.headers = copy(request.headers)
    del unsigned.headers["Authorization"]
    return unsigned


def _fixed_lines(url: str, host: str, headers: dict[str, Any]) -> bytes:
    path = f"/{url.partition('://')[2].partition('/')[2]}"
    lines = [f"POST {path} HTTP/1.1".encode(), f"Host: {host}".encode(), b"Accept-Encoding: identity"]
    for name, value in headers.items():
        if name not in VARYING_HEADERS:
            text = value if isinstance(value, bytes) else str(value).encode("latin-1")
            lines.append(name.encode() + b": " + text)
    return b"\r\n".join([*lines, b""])
