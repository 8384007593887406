"""Requests like one that botocore made, without the work that it does for each.

Connections, TLS, proxies, timeouts, credentials and errors are still botocore's.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.form import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from types_boto3_sqs import SQSClient

#: What answers have: lists of objects.
LISTS: Final = ("Messages", "Successful", "Failed")

REFUSED: Final = 300  # the first HTTP status that is no success


class Imitation:
    """Makes requests for a client. Immutable; any thread.

    Args:
        client: whose session, credentials and exceptions to use.
        request: the model, which the client is about to send.
        wall: seconds since the epoch.

    Raises:
        Exception: the request is not understood, or botocore has not what this needs; says why.
    """

    def __init__(self, client: SQSClient, request: AWSPreparedRequest, wall: Callable[[], float]) -> None:
        from botocore.awsrequest import HeadersDict  # noqa: PLC0415 - see clients.new_client
        from botocore.endpoint import convert_to_response_dict  # noqa: PLC0415 - see clients.new_client
        from botocore.parsers import create_parser  # noqa: PLC0415 - see clients.new_client

        self._meta: Any = client.meta
        self._exceptions: Any = client.exceptions
        self._session: Any = client._endpoint.http_session  # type: ignore[attr-defined] # noqa: SLF001
        credentials = client._request_signer._credentials  # type: ignore[attr-defined] # noqa: SLF001
        self._form = Form(request, credentials)
        self._wall = wall
        self._new_request: Any = type(request)
        self._new_headers = HeadersDict
        self._response_dict: Any = convert_to_response_dict
        service = self._meta.service_model
        protocol = getattr(service, "resolved_protocol", None) or service.metadata["protocol"]
        self._parser: Any = create_parser(protocol)

    def call(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request and return what is in the answer; raises what the client raises."""
        body = json.dumps(params).encode()
        headers = self._new_headers(self._form.fill(action, body, self._wall))
        request = self._new_request("POST", self._form.url, headers, body, stream_output=False)
        request.imitates = self
        answer = self._send(action, request)
        if answer.status_code >= REFUSED:
            raise self._refusal(action, answer)
        return _content(answer)

    @staticmethod
    def made(request: AWSPreparedRequest) -> bool:
        """Whether a request is an imitation."""
        return hasattr(request, "imitates")

    @staticmethod
    def knows(error: Exception) -> bool:
        """Whether SQS answered so, or it is one of botocore's errors but for that which may be any."""
        from botocore.exceptions import (  # noqa: PLC0415 - see clients.new_client
            BotoCoreError,
            ClientError,
            HTTPClientError,
        )
        from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see clients.new_client

        known = (BotoCoreError, ClientError, ResponseParserError)
        return isinstance(error, known) and type(error) is not HTTPClientError

    def _send(self, action: str, request: AWSPreparedRequest) -> AWSResponse:
        # Who listens to botocore's requests hears of these, too, and may answer them, as moto does.
        heard = self._meta.events.emit(f"before-send.sqs.{action}", request=request)
        answers = (answer for _, answer in heard if answer is not None)
        answer: AWSResponse = next(answers, None) or self._session.send(request)
        return answer

    def _refusal(self, action: str, answer: AWSResponse) -> Exception:
        """The client's exception for such an answer."""
        model = self._meta.service_model.operation_model(action)
        parsed = self._parser.parse(self._response_dict(answer, model), model.output_shape)
        told = parsed.get("Error", {})
        kind = self._exceptions.from_code(told.get("QueryErrorCode") or told.get("Code"))
        error: Exception = kind(parsed, action)
        return error


def _content(answer: AWSResponse) -> dict[str, Any]:
    """What is in an answer, as botocore would read it: no nulls, bytes as such, lists where they belong."""
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see clients.new_client

    try:
        content = json.loads(answer.content, object_hook=_as_read)
    except ValueError as error:
        raise ResponseParserError(f"its {len(answer.content)} bytes are not JSON") from error
    if not isinstance(content, dict) or not all(_are_objects(content.get(name, [])) for name in LISTS):
        raise ResponseParserError("its JSON has another shape")
    return content


def _as_read(members: dict[str, Any]) -> dict[str, Any]:
    read = {name: value for name, value in members.items() if value is not None}
    # Of a message attribute; one of that name is an object.
    if isinstance(binary := read.get("BinaryValue"), str):
        read["BinaryValue"] = base64.b64decode(binary)
    return read


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
