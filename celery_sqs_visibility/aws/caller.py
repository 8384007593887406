"""Makes a boto3 client's requests: the first ones as it does, and most of the rest at half the CPU time.

For every request botocore works out anew where it goes, what shapes it has and how it is signed. A worker
makes three kinds of them all day long, and what differs is the body. So a client's first request is looked at
on its way out; if all of it is understood, those that follow are made in its form. Connections, TLS, proxies,
timeouts, credentials and errors stay botocore's.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.form import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

#: The actions that are worth it. Their parameters go over the wire as they are.
FREQUENT: Final = frozenset({"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"})

#: Who asks for that may be answered in base64, which botocore decodes.
MAY_BE_BINARY: Final = "MessageAttributeNames"

#: Requests that are looked at: where keys were renewed at the wrong moment, the next will do.
MOST_LOOKS: Final = 3

REFUSED: Final = 300  # the first HTTP status that is no success


class Caller:
    """Calls SQS for one client, which makes no second attempt at a `FREQUENT` action. Any thread.

    Where botocore is not as we know it, in a later version or with another way to sign, its client goes on to
    make every request.

    Args:
        client: made for this alone.
        wall: seconds since the epoch.
    """

    def __init__(self, client: SQSClient, wall: Callable[[], float] = time.time) -> None:
        self.client = client
        self._wall = wall
        # botocore has no public names for these two.
        self._session: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
        self._credentials: Any = getattr(getattr(client, "_request_signer", None), "_credentials", None)
        self._form: Form | None = None
        self._looks = 0 if self._session is None or self._credentials is None else MOST_LOOKS
        client.meta.events.register("before-send.sqs", self._look)

    def call(self, action: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request and return what is in the answer.

        Args:
            action: of SQS's API.
            method: what the client calls it.
            params: the action's.

        Raises:
            Exception: what the client raises.
        """
        form = self._form
        if form is None or action not in FREQUENT or MAY_BE_BINARY in params:
            answer: Mapping[str, Any] = getattr(self.client, method)(**params)
            return answer
        return self._call(form, action, params)

    def close(self) -> None:
        """Close the connections that idle; the next call opens new ones."""
        self.client.close()

    def _look(self, request: AWSPreparedRequest, **_: Any) -> None:
        """Take the form from a request that is about to be sent. The thread that makes it."""
        if self._form is not None or not self._looks:
            return
        self._looks -= 1
        try:
            self._form = Form(request, self._credentials)
        except Exception as error:  # noqa: BLE001 - without a form requests only cost more
            logger.debug(
                "botocore makes this client's requests; the form of this one is not known: %s", error
            )

    def _call(self, form: Form, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        from botocore.awsrequest import AWSPreparedRequest  # noqa: PLC0415 - see clients.new_client

        body = json.dumps(params).encode()
        headers = form.fill(action, body, self._credentials, self._wall())
        # A plain dict does for the session, and converts nothing.
        request = AWSPreparedRequest("POST", form.url, headers, body, stream_output=False)  # type: ignore[arg-type]
        answer = self._send(action, request)
        if answer.status_code >= REFUSED:
            raise self._refusal(action, answer)
        return _content(answer)

    def _send(self, action: str, request: AWSPreparedRequest) -> AWSResponse:
        # Who listens to botocore's requests hears of these, too, and may answer them, as moto does.
        heard = self.client.meta.events.emit(f"before-send.sqs.{action}", request=request)
        answers = (answer for _, answer in heard if answer is not None)
        answer: AWSResponse = next(answers, None) or self._session.send(request)
        return answer

    def _refusal(self, action: str, answer: AWSResponse) -> Exception:
        """The client's exception for such an answer."""
        from botocore.endpoint import convert_to_response_dict  # noqa: PLC0415 - see clients.new_client
        from botocore.parsers import create_parser  # noqa: PLC0415 - see clients.new_client

        model: Any = self.client.meta.service_model.operation_model(action)
        parser = create_parser(model.service_model.resolved_protocol)
        parsed = parser.parse(convert_to_response_dict(answer, model), model.output_shape)
        exceptions: Any = self.client.exceptions
        error: Exception = exceptions.from_code(parsed.get("Error", {}).get("Code"))(parsed, action)
        return error


def _content(answer: AWSResponse) -> Mapping[str, Any]:
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - see clients.new_client

    try:
        content = json.loads(answer.content or b"{}")
    except ValueError as error:
        raise ResponseParserError(f"not JSON: {answer.content[:100]!r}") from error
    if not isinstance(content, dict):
        raise ResponseParserError(f"not an object: {answer.content[:100]!r}")
    return content
