"""SQS's frequent requests, made with a fifth of the CPU time that a boto3 client takes.

A client computes the endpoint, the shapes and the user agent for every request. But a worker makes only three
kinds of requests, a producer two, and only action, body, date and signature differ. So the client's first
request is a template for the others. Credentials, signatures, connections, TLS, proxies, timeouts and errors
are still botocore's. If a tracer has patched clients (`BaseClient._make_api_call`), they make all requests.

Two requests for one action differ only in body, date, length and signature. botocore signs the first one of a
day. Later ones fill in its canonical request (`SignedForm`), and botocore's `SigV4Auth` signs the result.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from copy import copy
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from ssl import SSLError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.exchange import exchange
from celery_sqs_visibility.contacts.botocore import (
    IdleConnections,
    http_session_of,
    is_listened_to,
    is_mocked,
    registrations_of,
)
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.signers import RequestSigner
    from types_boto3_sqs import SQSClient

    from celery_sqs_visibility.aws.exchange import Answer

logger = logging.getLogger(__name__)

#: Actions that publish. They are not repeated if SQS may have carried them out.
SENDS: Final = frozenset({"SendMessage", "SendMessageBatch"})

FREQUENT: Final = SENDS | {"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}

#: The header that names the action, and the prefix of its value.
TARGET: Final = "x-amz-target"
TARGET_PREFIX: Final = "AmazonSQS."

#: Headers that all requests of a client share. Any other may belong to a single request.
SHARED_HEADERS: Final = frozenset({"content-type", "user-agent", "x-amzn-query-mode"})

#: Members of answers that are lists of objects.
LISTS: Final = ("Messages", "Successful", "Failed")

#: The client makes all requests after it has succeeded this often where a fast request failed.
MAX_MISTAKES: Final = 3

#: Errors that may be due to the form of a request.
MAYBE_THE_FORM: Final = (
    CredentialsRefusedError,
    AccessDeniedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)

FIRST_REFUSAL_STATUS: Final = 300

#: Answers with these need more than JSON parsing: nulls are dropped, and binary values decoded.
UNLIKE_JSON: Final = (b"null", b"BinaryValue")

#: The day in the time of a request.
DAY: Final = slice(8)

#: Headers that differ between requests for one action.
VARYING_HEADERS: Final = frozenset({"authorization", "content-length", "host", "x-amz-date"})

SIGNATURE: Final = ", Signature="


class Caller:
    """Makes the requests of one boto3 client. Any thread.

    The client makes all requests if its first one has an unknown form, or if it is configured to retry. It
    repeats a fast request that was refused if the form may be the reason.
    """

    def __init__(self, client: SQSClient) -> None:
        self.client = client
        self._seen = False  # until the client makes its first request
        self._fast: FastRequests | None = None
        self._mistakes = 0
        self._accepted: set[str] = set()  # actions for which SQS has accepted a fast request
        # Registered first, to see the request before other listeners add headers, which they do for each.
        config: Any = client.meta.config
        if (config.retries or {}).get("total_max_attempts") == 1:
            client.meta.events.register_first("before-sign.sqs", self._see)

    def call(self, action: str, params: Mapping[str, Any], *, is_json: bool = True) -> Mapping[str, Any]:
        """Make a request and return its answer. Raises the client's exceptions.

        If parameters have bytes (`is_json` is false), the client makes the request.
        """
        fast = self._fast
        if fast is None or action not in FREQUENT or not is_json:
            return self._ask_client(action, params)
        if not fast.may_replace_the_client():
            return self._ask_client(action, params)
        sent = False
        try:
            send = fast.prepared(action, params)
            sent = True
            answer = fast.answer(action, send)
        except Exception as error:
            if not _may_be_our_doing(error, action) or (sent and not self._may_repeat(action, error)):
                raise
            reason = error
        else:
            self._accepted.add(action)
            return answer
        answer = self._ask_client(action, params)
        self._note_mistake(reason)
        return answer

    def _may_repeat(self, action: str, error: Exception) -> bool:
        """Return whether the client may repeat a request that was sent.

        A publication is repeated only if SQS has refused it, and never accepted a fast one for the action. If
        the answer was lost, the message may have been stored.
        """
        return action not in SENDS or (action not in self._accepted and _is_refusal(error, action))

    def close(self) -> None:
        """Close idle connections. The next call opens new ones."""
        self.client.close()
        if self._fast is not None:
            self._fast.forget_connections()

    def _ask_client(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        from botocore import xform_name  # noqa: PLC0415 - see client_factory

        answer: Mapping[str, Any] = getattr(self.client, xform_name(action))(**params)
        return answer

    def _see(self, request: AWSRequest, request_signer: RequestSigner, **_: Any) -> None:
        """Take the client's first request as the template. Runs in the thread that makes it."""
        if self._seen:
            return
        self._seen = True
        self.client.meta.events.unregister("before-sign.sqs", self._see)
        try:
            self._fast = FastRequests(self.client, request, request_signer)
        except Exception as error:  # noqa: BLE001 - requests then only cost more
            logger.info("boto3 makes all requests to SQS, which takes more CPU time: %s", error)

    def _note_mistake(self, reason: Exception) -> None:
        self._mistakes += 1
        if self._mistakes >= MAX_MISTAKES and self._fast is not None:
            self._fast = None
            logger.warning(
                "boto3 makes all requests to SQS from now on, as it succeeded where faster ones failed: %s",
                reason,
            )


class FastRequests:
    """Makes requests like the client's unsigned `template`. Any thread.

    botocore signs and sends the first request for an action on each day. For later ones its form is filled in
    and sent over one of botocore's idle connections. botocore also signs and sends if no connection is idle,
    or if there are listeners to its events.

    Raises:
        Exception: the template has an unknown form, or this botocore lacks a needed part.
    """

    def __init__(self, client: SQSClient, template: AWSRequest, signer: RequestSigner) -> None:
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - see client_factory
        from botocore.endpoint import convert_to_response_dict  # noqa: PLC0415 - see client_factory
        from botocore.parsers import create_parser  # noqa: PLC0415 - see client_factory

        headers: dict[str, Any] = {name.lower(): value for name, value in template.headers.items()}
        if not str(headers.pop(TARGET, "")).startswith(TARGET_PREFIX):
            raise ValueError("the client's first request uses another protocol")
        if unknown := headers.keys() - SHARED_HEADERS:
            raise ValueError(f"the client's first request has the header {min(unknown)!r}")
        # This header is not signed, and users may add characters beyond Latin-1 to it.
        headers["user-agent"] = str(headers.get("user-agent", "")).encode()
        self._headers = headers
        self._url = str(template.url)
        self._context = dict(template.context)
        self._signer: Any = signer
        self._client: Any = client
        self._session: Any = http_session_of(client)
        self._new_request: Any = AWSRequest
        self._response_dict: Any = convert_to_response_dict
        service = self._client.meta.service_model
        protocol = getattr(service, "resolved_protocol", None) or service.metadata["protocol"]
        self._parser: Any = create_parser(protocol)
        self._idle = IdleConnections(self._session, self._url)
        #: By action; `None` if botocore signs each request. Each access is atomic.
        self._forms: dict[str, SignedForm | None] = {}
        self._registrations: object = self  # the listeners known to the forms; `self` if none was made yet
        self._is_allowed = False  # if those listeners allow fast requests
        self._proven: set[str] = set()  # actions whose filled-in form SQS has accepted

    def may_replace_the_client(self) -> bool:
        """Return whether nobody wraps or answers the client's requests, such as a tracer or a Stubber."""
        registrations = registrations_of(self._client)
        if self._registrations is not registrations:
            self._forms = {}  # new listeners may change requests
            mocked = any(is_mocked(self._client, action) for action in FREQUENT)
            self._is_allowed = registrations is not None and not mocked
            self._registrations = registrations
        return self._is_allowed

    def prepared(self, action: str, params: Mapping[str, Any]) -> Callable[[], Any]:
        """Sign a request. Returns a function that sends it and returns the server's answer."""
        body = json.dumps(params).encode()
        return self._by_form(action, body) or partial(self._send, action, self._signed(action, body))

    def answer(self, action: str, send: Callable[[], Any]) -> Mapping[str, Any]:
        """Send a prepared request and return its answer. Raises the client's exceptions."""
        answer = send()
        if answer.status_code >= FIRST_REFUSAL_STATUS:
            error = self._refusal(action, answer)
            if action not in self._proven and isinstance(translate(error, action), MAYBE_THE_FORM):
                self._forms[action] = None
            raise error
        return _content(answer.content)

    def forget_connections(self) -> None:
        """Stop using connections of a client that was closed."""
        self._idle = IdleConnections(self._session, self._url)

    def _by_form(self, action: str, body: bytes) -> Callable[[], Any] | None:
        """Fill in the action's form, and take a connection. `None` if either is missing."""
        if (form := self._forms.get(action)) is None:
            return None
        auth, time = self._new_auth(), time_now()
        if not form.is_for(auth, time):
            return None
        request = form.filled_in(auth, time, body)
        idle = self._idle
        connection = idle.take()
        return connection and partial(self._exchange, action, idle, connection, request)

    def _exchange(self, action: str, idle: IdleConnections, connection: Any, request: bytes) -> Answer:
        from botocore import exceptions  # noqa: PLC0415 - see client_factory

        stays = False
        try:
            answer = exchange(connection.sock, request)
            stays = answer.keeps_connection
        except TimeoutError as error:
            raise exceptions.ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except SSLError as error:
            raise exceptions.SSLError(endpoint_url=self._url, error=error) from error
        except (OSError, HTTPException) as error:
            raise exceptions.ConnectionClosedError(endpoint_url=self._url, error=error) from error
        finally:
            if not stays:
                connection.close()
            idle.give_back(connection)
        if answer.status_code < FIRST_REFUSAL_STATUS:
            self._proven.add(action)
        return answer

    def _signed(self, action: str, body: bytes) -> Any:
        headers = {**self._headers, TARGET: f"{TARGET_PREFIX}{action}"}
        request = self._new_request("POST", self._url, headers, body)
        request.context.update(self._context)
        forms, auth = self._forms, self._new_auth()
        self._signer.sign(action, request)
        self._keep_form(forms, action, auth, request)
        return request.prepare()

    def _keep_form(
        self, forms: dict[str, SignedForm | None], action: str, auth: Any, request: AWSRequest
    ) -> None:
        known = forms.get(action)
        if known is None and action in forms:
            return
        if known is not None and known.is_for(auth, request.context["timestamp"]):
            return
        # If credentials were renewed meanwhile, the old or the new ones may have signed.
        if auth.credentials != self._new_auth().credentials or is_listened_to(self._client, action):
            return
        try:
            forms[action] = SignedForm(auth, request)
        except Exception as error:  # noqa: BLE001 - requests then only cost more
            forms[action] = None
            logger.info("botocore signs each %s, which takes more CPU time: %s", action, error)

    def _new_auth(self) -> Any:
        signer = self._signer
        return signer.get_auth_instance(signer.signing_name, signer.region_name, "v4")

    def _send(self, action: str, request: Any) -> Any:
        # Listeners must hear of these requests, too. They may answer them, as moto does.
        heard = self._client.meta.events.emit(f"before-send.sqs.{action}", request=request)
        answers = (answer for _, answer in heard if answer is not None)
        return next(answers, None) or self._session.send(request)

    def _refusal(self, action: str, answer: Any) -> Exception:
        """Return the client's exception for a refusal."""
        model = self._client.meta.service_model.operation_model(action)
        parsed = self._parser.parse(self._response_dict(answer, model), model.output_shape)
        error = parsed.get("Error", {})
        kind = self._client.exceptions.from_code(error.get("QueryErrorCode") or error.get("Code"))
        exception: Exception = kind(parsed, action)
        return exception


def _may_be_our_doing(error: Exception, action: str) -> bool:
    """Return whether the client may succeed where a fast request raised this error."""
    from botocore.exceptions import BotoCoreError, HTTPClientError  # noqa: PLC0415 - see client_factory
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see client_factory

    if hasattr(error, "response"):
        return isinstance(translate(error, action), MAYBE_THE_FORM)
    # HTTPClientError itself, not a subclass, wraps exceptions that botocore does not know.
    known = isinstance(error, (BotoCoreError, ResponseParserError))
    return not known or type(error) is HTTPClientError


def _is_refusal(error: Exception, action: str) -> bool:
    """Return whether SQS refused the request, so that it was not carried out."""
    return hasattr(error, "response") and not isinstance(translate(error, action), UnrecognizedResponseError)


def _content(body: bytes) -> dict[str, Any]:
    """Parse an answer as botocore does: drop nulls, decode binary values, and check the lists."""
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see client_factory

    hook = _members if any(part in body for part in UNLIKE_JSON) else None
    try:
        content = json.loads(body, object_hook=hook)
    except ValueError as error:
        raise ResponseParserError(f"its {len(body)} bytes are not JSON") from error
    if not isinstance(content, dict) or not all(_are_objects(content.get(name, [])) for name in LISTS):
        raise ResponseParserError("its JSON has another shape")
    return content


def _members(members: dict[str, Any]) -> dict[str, Any]:
    read = {name: value for name, value in members.items() if value is not None}
    # The value of a message attribute. An attribute that is named so is an object instead.
    if isinstance(binary := read.get("BinaryValue"), str):
        read["BinaryValue"] = base64.b64decode(binary)
    return read


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


class SignedForm:
    """A signed request as a template for other bodies and times. Immutable. Any thread.

    Args:
        auth: the signer of the request.
        request: a signed AWSRequest.

    Raises:
        ValueError: the form gives another signature than botocore for this very request.
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
        """Return whether the form holds at that time, for the credentials of `auth`."""
        return time[DAY] == self._day and bool(auth.credentials == self._credentials)

    def filled_in(self, auth: SigV4Auth, time: str, body: bytes) -> bytes:
        """Return the head and body of a signed request, as they are sent."""
        varying = (
            f"X-Amz-Date: {time}\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: {self._authorization}{SIGNATURE}{self._signature(auth, time, body)}\r\n\r\n"
        )
        return self._fixed + varying.encode() + body

    def _signature(self, auth: SigV4Auth, time: str, body: bytes) -> str:
        at: Any = SimpleNamespace(context={"timestamp": time})  # all that `auth` reads
        digest = hashlib.sha256(body).hexdigest()
        text = auth.string_to_sign(at, f"{self._before_time}{time}{self._after_time}{digest}")
        return auth.signature(text, at)


def time_now() -> str:
    """Return the time in the format of signatures (botocore/auth.py: `SIGV4_TIMESTAMP`)."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")


def _before_signing(request: Any) -> Any:
    """Return a request without its signature, which covers all other headers."""
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
