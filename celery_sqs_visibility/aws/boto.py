"""The port to SQS, over boto3."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit
from weakref import finalize

from celery_sqs_visibility.aws.client_factory import (
    SHORT_WAIT_SECONDS,
    ClientPurpose,
    new_client,
    unknown_region,
)
from celery_sqs_visibility.aws.error_codes import translate, translate_entry, wrong_settings
from celery_sqs_visibility.aws.fast_requests import Caller
from celery_sqs_visibility.aws.port import SQS, BatchResult, Location, MoveTask
from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.contacts.botocore import is_mocked
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ClockSkewError,
    CredentialsRefusedError,
    RequestRefusedError,
    SQSError,
    UnreachableError,
)
from celery_sqs_visibility.events import SQSRequest, emit
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.quotas import LISTED_QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from types_boto3_sqs import SQSClient

    from celery_sqs_visibility.aws.client_settings import ClientSettings
    from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage, ReceiveOptions

T = TypeVar("T")

#: How long an endpoint counts as reachable after it accepted a connection.
REACHED_SECONDS: Final = 5.0


class BotoSQS(SQS):
    """SQS over boto3, for one set of settings. Every request emits `events.SQSRequest`.

    Safe to use from any thread and after a fork: each process makes a client for each purpose when it first
    needs one, and never touches its parent's.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        # Written under SESSIONS, read without it: looking up a key is atomic.
        self._callers: dict[tuple[int, ClientPurpose], Caller] = {}
        finalize(self, _close, self._callers).atexit = False  # threads may still use them at exit
        self._answered = False  # until SQS answers for the first time
        self._reached = (0, 0.0)  # process id, and the monotonic instant until which it holds; replaced whole

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings!r})"

    def location(self) -> Location:
        """Make a client if there is none: only botocore knows the region and endpoint of the settings."""
        action = "GetQueueUrl"  # usually the first request, which needs this client anyway
        try:
            meta = self._caller(ClientPurpose.SETTLE, action).client.meta
        except Exception as exc:  # noqa: BLE001 - the port promises an SQSError and nothing else
            error = translate(exc, action)
            raise error from error.__cause__ or exc
        return Location(meta.region_name, meta.endpoint_url)

    def reach(self) -> None:
        """Check at most once in `REACHED_SECONDS` per process, however many connections are made."""
        pid, until = self._reached
        if pid == os.getpid() and SYSTEM_CLOCK.monotonic() < until:
            return
        caller: Caller | None = None
        try:
            caller = self._caller(ClientPurpose.SETTLE, "connect")
            _connect(caller.client)
        except Exception as exc:  # noqa: BLE001 - the port promises an SQSError and nothing else
            error = self._react(translate(exc, "connect"), caller)
            raise error from error.__cause__ or exc
        self._reached = os.getpid(), SYSTEM_CLOCK.monotonic() + REACHED_SECONDS

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """Receive. Blocks for up to `wait` seconds, and up to 10 more when the network fails.

        An aborted poll may still receive messages, which then stay hidden for their visibility timeout.
        """
        params = _set(
            QueueUrl=queue_url,
            MaxNumberOfMessages=max_messages,
            WaitTimeSeconds=wait,
            VisibilityTimeout=options.visibility_timeout,
            MessageSystemAttributeNames=list(options.system_attributes) or None,
            MessageAttributeNames=list(options.message_attributes) or None,
            ReceiveRequestAttemptId=options.attempt_id,
        )
        purpose = ClientPurpose.SHORT_POLL if wait <= SHORT_WAIT_SECONDS else ClientPurpose.RECEIVE
        return self._call("ReceiveMessage", params, lambda answer: list(answer.get("Messages", [])), purpose)

    def discard_idle_connections(self) -> None:
        for purpose in ClientPurpose:
            caller = self._callers.get((os.getpid(), purpose))
            if caller is not None:
                caller.close()  # only idle connections: it stays usable

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        return self._batch("DeleteMessageBatch", queue_url, [{"ReceiptHandle": handle} for handle in handles])

    def change_visibility(
        self, queue_url: str, changes: Sequence[tuple[str, int]], *, urgent: bool = False
    ) -> BatchResult:
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle, seconds in changes]
        purpose = ClientPurpose.EXTEND_SOON if urgent else ClientPurpose.SETTLE
        return self._batch("ChangeMessageVisibilityBatch", queue_url, entries, purpose)

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        params = {"QueueUrl": queue_url, **_entry(message)}
        return self._call(
            "SendMessage",
            params,
            lambda answer: str(answer["MessageId"]),
            ClientPurpose.PUBLISH,
            is_json=not message.attributes,
        )

    def send_batch(
        self, queue_url: str, messages: Sequence[OutgoingMessage], *, urgent: bool = False
    ) -> BatchResult:
        entries = [_entry(message) for message in messages]
        purpose = ClientPurpose.PUBLISH if urgent else ClientPurpose.PUBLISH_BATCH
        is_json = not any(message.attributes for message in messages)  # attributes may have bytes
        return self._batch("SendMessageBatch", queue_url, entries, purpose, is_json=is_json)

    def queue_url(self, name: str, owner: str | None = None) -> str:
        params = _set(QueueName=name, QueueOwnerAWSAccountId=owner)
        return self._call("GetQueueUrl", params, _queue_url)

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        params = _set(QueueName=name, Attributes=dict(attributes) or None, tags=dict(tags) or None)
        try:
            return self._call("CreateQueue", params, _queue_url, ClientPurpose.PUBLISH)
        except RequestRefusedError as error:
            if error.code not in {"QueueAlreadyExists", "QueueNameExists"}:  # the codes of both protocols
                raise
            return self.queue_url(name)

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        params = {"QueueUrl": queue_url, "AttributeNames": list(names)}
        return self._call("GetQueueAttributes", params, lambda answer: dict(answer.get("Attributes", {})))

    def set_queue_attributes(self, queue_url: str, attributes: Mapping[str, str]) -> None:
        params = {"QueueUrl": queue_url, "Attributes": dict(attributes)}
        self._call("SetQueueAttributes", params, bool)

    def purge(self, queue_url: str) -> None:
        self._call("PurgeQueue", {"QueueUrl": queue_url}, bool)

    def delete_queue(self, queue_url: str) -> None:
        self._call("DeleteQueue", {"QueueUrl": queue_url}, bool)

    def list_queues(self, prefix: str) -> list[str]:
        params: dict[str, Any] = {"QueueNamePrefix": prefix, "MaxResults": LISTED_QUEUES}
        urls: list[str] = []
        while True:
            answer = self._call("ListQueues", params, dict)
            urls += answer.get("QueueUrls", [])
            if not (token := answer.get("NextToken")):
                return urls
            params["NextToken"] = token

    def queue_tags(self, queue_url: str) -> dict[str, str]:
        return self._call(
            "ListQueueTags", {"QueueUrl": queue_url}, lambda answer: dict(answer.get("Tags", {}))
        )

    def tag_queue(self, queue_url: str, tags: Mapping[str, str]) -> None:
        self._call("TagQueue", {"QueueUrl": queue_url, "Tags": dict(tags)}, bool)

    def untag_queue(self, queue_url: str, keys: Sequence[str]) -> None:
        self._call("UntagQueue", {"QueueUrl": queue_url, "TagKeys": list(keys)}, bool)

    def start_move_task(self, source_arn: str, destination_arn: str, per_second: int | None = None) -> None:
        params = _set(
            SourceArn=source_arn, DestinationArn=destination_arn, MaxNumberOfMessagesPerSecond=per_second
        )
        self._call("StartMessageMoveTask", params, bool)

    def latest_move_task(self, source_arn: str) -> MoveTask | None:
        return self._call("ListMessageMoveTasks", {"SourceArn": source_arn, "MaxResults": 1}, _latest_task)

    def close(self) -> None:
        """Close this process's connections. The next call opens new ones. Idempotent. Any thread."""
        with SESSIONS:
            callers = {key: self._callers.pop(key) for key in list(self._callers) if key[0] == os.getpid()}
        _close(callers)

    def _batch(
        self,
        action: str,
        queue_url: str,
        entries: Sequence[Mapping[str, Any]],
        purpose: ClientPurpose = ClientPurpose.SETTLE,
        *,
        is_json: bool = True,
    ) -> BatchResult:
        numbered = [{"Id": str(position), **entry} for position, entry in enumerate(entries)]
        params = {"QueueUrl": queue_url, "Entries": numbered}
        read = partial(_batch_result, entries=len(entries), action=action)
        return self._call(action, params, read, purpose, is_json=is_json)

    def _call(
        self,
        action: str,
        params: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        purpose: ClientPurpose = ClientPurpose.SETTLE,
        *,
        is_json: bool = True,
    ) -> T:
        """Make a request and read its answer. Any error in either is raised as an `SQSError`."""
        started = SYSTEM_CLOCK.monotonic()
        outcome = "ok"
        caller: Caller | None = None
        try:
            caller = self._caller(purpose, action)
            result = read(caller.call(action, params, is_json=is_json))
            self._answered = True
        except Exception as exc:  # noqa: BLE001 - the port promises an SQSError and nothing else
            error = self._react(translate(exc, action), caller)
            outcome = error.code
            raise error from error.__cause__
        finally:
            if SQSRequest.is_wanted():
                seconds = SYSTEM_CLOCK.monotonic() - started
                emit(SQSRequest(action, seconds, outcome, _queue_of(params)))
        return result

    def _react(self, error: SQSError, caller: Caller | None) -> SQSError:
        """Replace or reset a client that may have caused the error. Returns the error to raise."""
        if isinstance(error, CredentialsRefusedError) and not isinstance(error, ClockSkewError):
            # Only new clients read rotated credentials. The first thread that failed replaces them.
            if self.settings.renewable and caller in self._callers.values():
                self.close()
        elif error.code in {"ReadTimeoutError", "ConnectTimeoutError"} and caller is not None:
            caller.close()  # its idle connections may be dead too
        elif (
            error.code in {"EndpointConnectionError", "ProxyConnectionError"}
            and caller is not None
            and not self._answered
        ):
            return unknown_region(caller.client) or error
        return error

    def _caller(self, purpose: ClientPurpose, action: str) -> Caller:
        key = os.getpid(), purpose
        caller = self._callers.get(key)
        if caller is None:
            with SESSIONS:
                caller = self._callers.get(key) or self._new_caller(purpose, action)
                self._callers[key] = caller
        return caller

    def _new_caller(self, purpose: ClientPurpose, action: str) -> Caller:
        try:
            return Caller(new_client(self.settings, purpose))
        except (TypeError, ValueError) as exc:  # a bad endpoint, region or option
            raise wrong_settings(exc, action) from None


def _close(callers: Mapping[tuple[int, ClientPurpose], Caller]) -> None:
    """Close this process's connections. Takes no lock, because a finalizer may run while any lock is held."""
    for (pid, _), caller in callers.items():
        if pid == os.getpid():
            caller.close()


def _entry(message: OutgoingMessage) -> dict[str, Any]:
    """Return a message as a parameter of SendMessage, or as an entry of SendMessageBatch."""
    return _set(
        MessageBody=message.body,
        MessageAttributes=dict(message.attributes) or None,
        DelaySeconds=message.delay_at(SYSTEM_CLOCK.wall()),
        MessageGroupId=message.group_id,
        MessageDeduplicationId=message.deduplication_id,
    )


def _set(**params: Any) -> dict[str, Any]:
    """Return the parameters that are not `None`."""
    return {name: value for name, value in params.items() if value is not None}


def _queue_of(params: Mapping[str, Any]) -> str:
    """Return the name of a request's queue, or the prefix of those it lists; empty if it has none."""
    name = params.get("QueueName") or params.get("QueueNamePrefix")
    return str(name or params.get("QueueUrl", "").rpartition("/")[2])


def _queue_url(answer: Mapping[str, Any]) -> str:
    return str(answer["QueueUrl"])


def _latest_task(answer: Mapping[str, Any]) -> MoveTask | None:
    for entry in answer.get("Results", []):
        return MoveTask(
            entry["Status"],
            entry.get("ApproximateNumberOfMessagesMoved", 0),
            entry.get("ApproximateNumberOfMessagesToMove"),
            entry.get("FailureReason"),
            entry.get("StartedTimestamp"),
        )
    return None


def _batch_result(answer: Mapping[str, Any], entries: int, action: str) -> BatchResult:
    successful = answer.get("Successful", [])
    done = {entry.get("Id") for entry in successful}
    errors = {entry.get("Id"): entry for entry in answer.get("Failed", [])}
    failed: dict[int, SQSError] = {}
    for position in range(entries):
        if (error := errors.get(str(position))) is not None:
            failed[position] = translate_entry(error, action)
        elif str(position) not in done:
            sentence = f"{action} was answered without a result for this message"
            failed[position] = AnswerLostError(sentence, action=action)
    return BatchResult(failed, successful)


def _connect(client: SQSClient) -> None:
    """Open and close a TCP connection to the client's endpoint or its proxy. Makes no request. Blocks.

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
