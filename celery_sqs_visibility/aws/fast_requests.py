"""SQS's frequent requests, made in seven tenths of the CPU time that a boto3 client takes.

A client works out the endpoint, the shapes and the user agent anew for every request. A worker makes three
kinds of requests all day long, a block of publications one, and only action, body, date and signature differ:
the client's first request is a template for the others. Signing, credentials, connections, TLS, proxies,
timeouts and errors are botocore's.

Where a tracer has patched clients (`BaseClient._make_api_call`), the client makes all requests.
"""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.contacts.botocore import http_session_of, is_patched
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.awsrequest import AWSRequest
    from botocore.signers import RequestSigner
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

#: Actions that are frequent. Their parameters are JSON as they are.
FREQUENT: Final = frozenset({"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"})

#: The header that names the action, and what stands before the action there.
TARGET: Final = "x-amz-target"
TARGET_PREFIX: Final = "AmazonSQS."

#: Headers that all requests of a client share. Any other may belong to one request alone.
SHARED_HEADERS: Final = frozenset({"content-type", "user-agent", "x-amzn-query-mode"})

#: Members of an answer that are lists of objects.
LISTS: Final = ("Messages", "Successful", "Failed")

#: The client makes all requests after this many fast ones have failed where the client then succeeded.
MOST_MISTAKES: Final = 3

#: Refusals that the form of a request may explain.
MAYBE_THE_FORM: Final = (
    CredentialsRefusedError,
    AccessDeniedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)

FIRST_REFUSAL_STATUS: Final = 300


class Caller:
    """Makes the requests of one boto3 client, which makes a single attempt at `FREQUENT` actions. Any thread.

    Where the client's first request has an unknown form, the client makes all of them. Where a fast request
    is refused and its form may be the reason, the client repeats it.
    """

    def __init__(self, client: SQSClient) -> None:
        self.client = client
        self._seen = False  # whether the client has made a request
        self._fast: FastRequests | None = None
        self._mistakes = 0
        # First, and so without the headers that other listeners add: they add them to each request.
        client.meta.events.register_first("before-sign.sqs", self._see)

    def call(
        self, action: str, params: Mapping[str, Any], *, repeatable: bool = False, once: bool = False
    ) -> Mapping[str, Any]:
        """Make a request and return its answer; raises the client's exceptions.

        One that is `repeatable`, or `once`, and has JSON for parameters, is made as a frequent one. That of
        `once` is not repeated where SQS may have carried it out.
        """
        fast = self._fast
        if fast is None or not (action in FREQUENT or repeatable or once) or is_patched(self.client):
            return self._ask_client(action, params)
        sent = False
        try:
            request = fast.prepared(action, params)
            sent = True
            return fast.answer(action, request)
        except Exception as error:
            if not _may_be_our_doing(error, action) or (once and sent and not _is_refusal(error, action)):
                raise
            reason = error
        answer = self._ask_client(action, params)
        self._note_mistake(reason)
        return answer

    def close(self) -> None:
        """Close idle connections; the next call opens new ones."""
        self.client.close()

    def _ask_client(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        from botocore import xform_name  # noqa: PLC0415 - see client_factory

        answer: Mapping[str, Any] = getattr(self.client, xform_name(action))(**params)
        return answer

    def _see(self, request: AWSRequest, request_signer: RequestSigner, **_: Any) -> None:
        """Take the client's first request as the template. In the thread that makes it."""
        if self._seen:
            return
        self._seen = True
        try:
            self._fast = FastRequests(self.client, request, request_signer)
        except Exception as error:  # noqa: BLE001 - requests only cost more then
            logger.info("boto3 makes all requests to SQS, which takes more CPU time: %s", error)

    def _note_mistake(self, reason: Exception) -> None:
        self._mistakes += 1
        if self._mistakes >= MOST_MISTAKES and self._fast is not None:
            self._fast = None
            logger.warning(
                "boto3 makes all requests to SQS from now on, since it succeeds where faster ones fail: %s",
                reason,
            )


class FastRequests:
    """Makes requests like a client's `template`, which is not signed yet. Immutable; any thread.

    Raises:
        Exception: the template has an unknown form, or botocore lacks a part that is needed.
    """

    def __init__(self, client: SQSClient, template: AWSRequest, signer: RequestSigner) -> None:
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - see client_factory
        from botocore.endpoint import convert_to_response_dict  # noqa: PLC0415 - see client_factory
        from botocore.parsers import create_parser  # noqa: PLC0415 - see client_factory

        headers: dict[str, Any] = {name.lower(): value for name, value in template.headers.items()}
        if not str(headers.pop(TARGET, "")).startswith(TARGET_PREFIX):
            raise ValueError("the client's first request is of another protocol")
        if unknown := headers.keys() - SHARED_HEADERS:
            raise ValueError(f"the client's first request has a header {min(unknown)!r}")
        # It is not signed, and the user's part of it may have characters beyond Latin-1.
        headers["user-agent"] = str(headers.get("user-agent", "")).encode()
        self._headers = headers
        self._url = template.url
        self._context = dict(template.context)
        self._signer: Any = signer
        self._meta: Any = client.meta
        self._exceptions: Any = client.exceptions
        self._session: Any = http_session_of(client)
        self._new_request: Any = AWSRequest
        self._response_dict: Any = convert_to_response_dict
        service = self._meta.service_model
        protocol = getattr(service, "resolved_protocol", None) or service.metadata["protocol"]
        self._parser: Any = create_parser(protocol)

    def prepared(self, action: str, params: Mapping[str, Any]) -> Any:
        """Return a request, signed."""
        headers = {**self._headers, TARGET: f"{TARGET_PREFIX}{action}"}
        request = self._new_request("POST", self._url, headers, json.dumps(params).encode())
        request.context.update(self._context)
        self._signer.sign(action, request)
        return request.prepare()

    def answer(self, action: str, request: Any) -> Mapping[str, Any]:
        """Make the request and return its answer; raises the client's exceptions."""
        answer = self._send(action, request)
        if answer.status_code >= FIRST_REFUSAL_STATUS:
            raise self._refusal(action, answer)
        return _content(answer.content)

    def _send(self, action: str, request: Any) -> Any:
        # Listeners to botocore's requests hear of these, too, and may answer them, as moto does.
        heard = self._meta.events.emit(f"before-send.sqs.{action}", request=request)
        answers = (answer for _, answer in heard if answer is not None)
        return next(answers, None) or self._session.send(request)

    def _refusal(self, action: str, answer: Any) -> Exception:
        """Return the client's exception for a refusal."""
        model = self._meta.service_model.operation_model(action)
        parsed = self._parser.parse(self._response_dict(answer, model), model.output_shape)
        error = parsed.get("Error", {})
        kind = self._exceptions.from_code(error.get("QueryErrorCode") or error.get("Code"))
        exception: Exception = kind(parsed, action)
        return exception


def _may_be_our_doing(error: Exception, action: str) -> bool:
    """Return whether the client may succeed where a fast request raised that error."""
    from botocore.exceptions import BotoCoreError, HTTPClientError  # noqa: PLC0415 - see client_factory
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see client_factory

    if hasattr(error, "response"):
        return isinstance(translate(error, action), MAYBE_THE_FORM)
    # HTTPClientError itself, and not a class of it, wraps an exception that botocore does not know.
    known = isinstance(error, (BotoCoreError, ResponseParserError))
    return not known or type(error) is HTTPClientError


def _is_refusal(error: Exception, action: str) -> bool:
    """Return whether SQS has refused the request, and so has not carried it out."""
    return hasattr(error, "response") and not isinstance(translate(error, action), UnrecognizedResponseError)


def _content(body: bytes) -> dict[str, Any]:
    """Return an answer as botocore reads it: without nulls, with bytes decoded, with lists that are lists."""
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see client_factory

    try:
        content = json.loads(body, object_hook=_members)
    except ValueError as error:
        raise ResponseParserError(f"its {len(body)} bytes are not JSON") from error
    if not isinstance(content, dict) or not all(_are_objects(content.get(name, [])) for name in LISTS):
        raise ResponseParserError("its JSON has another shape")
    return content


def _members(members: dict[str, Any]) -> dict[str, Any]:
    read = {name: value for name, value in members.items() if value is not None}
    # Bytes of a message attribute. An attribute of that name is an object instead.
    if isinstance(binary := read.get("BinaryValue"), str):
        read["BinaryValue"] = base64.b64decode(binary)
    return read


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
