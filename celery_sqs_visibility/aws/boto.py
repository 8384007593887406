"""The port to SQS, over boto3."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery_sqs_visibility.aws.client_factory import SHORT_WAIT, Purpose, new_client
from celery_sqs_visibility.aws.error_codes import translate, translate_entry
from celery_sqs_visibility.aws.fast_requests import Caller
from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.aws.process_lock import SESSIONS
from celery_sqs_visibility.errors import (
    ClockSkewError,
    CredentialsRefusedError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.events import SQSRequest, emit, has_listener
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from types_boto3_sqs import SQSClient

    from celery_sqs_visibility.aws.client_factory import ClientSettings
    from celery_sqs_visibility.aws.port import OutgoingMessage, ReceivedMessage, ReceiveOptions
    from celery_sqs_visibility.policy.clock import Clock

T = TypeVar("T")

#: Each API action's method on a boto3 client, and the client that is for it.
_ACTIONS: Final = {
    "ReceiveMessage": ("receive_message", Purpose.RECEIVE),  # or GLANCE, by its wait
    "DeleteMessageBatch": ("delete_message_batch", Purpose.SETTLE),
    "ChangeMessageVisibilityBatch": ("change_message_visibility_batch", Purpose.SETTLE),
    "SendMessage": ("send_message", Purpose.PUBLISH),
    "SendMessageBatch": ("send_message_batch", Purpose.PUBLISH_BATCH),
    "GetQueueUrl": ("get_queue_url", Purpose.SETTLE),
    "CreateQueue": ("create_queue", Purpose.PUBLISH),
    "GetQueueAttributes": ("get_queue_attributes", Purpose.SETTLE),
    "PurgeQueue": ("purge_queue", Purpose.SETTLE),
    "DeleteQueue": ("delete_queue", Purpose.SETTLE),
}

#: Exceptions of a connection that gives no answer, or of a host that cannot be reached.
_NO_ANSWER: Final = {"ReadTimeoutError", "ConnectTimeoutError"}
_NO_SUCH_HOST: Final = {"EndpointConnectionError", "ProxyConnectionError"}

#: "There is a queue of that name with other attributes", in both protocols.
_NAME_IS_TAKEN: Final = {"QueueAlreadyExists", "QueueNameExists"}


class BotoSQS:
    """The `SQS` of `aws.port`, for one set of settings.

    Usable from any thread, and in forked children: clients are made when first needed, one for each
    purpose and process, and a child never touches its parent's.

    Args:
        settings: where SQS is and who asks.
        clock: what the seconds are measured with, and requests dated.
    """

    def __init__(self, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        # Written under SESSIONS; read without, a dict's look-up being one step.
        self._callers: dict[tuple[int, Purpose], Caller] = {}
        self._answered = False  # whether SQS ever answered anything

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r})"

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """See `SQS.receive`. Blocks up to `wait` seconds, and 10 more when the network fails.

        A poll that is cut off may still take messages at SQS, which nobody gets until their visibility
        timeout is over: that is why its answer is waited for so long.
        """
        params: dict[str, Any] = {"MaxNumberOfMessages": max_messages, "WaitTimeSeconds": wait}
        if options.visibility_timeout is not None:
            params["VisibilityTimeout"] = options.visibility_timeout
        if options.system_attributes:
            params["MessageSystemAttributeNames"] = list(options.system_attributes)
        if options.message_attributes:
            params["MessageAttributeNames"] = list(options.message_attributes)
        if options.attempt_id is not None:
            params["ReceiveRequestAttemptId"] = options.attempt_id
        purpose = Purpose.GLANCE if wait <= SHORT_WAIT else Purpose.RECEIVE
        return self._call("ReceiveMessage", _messages, purpose, QueueUrl=queue_url, **params)

    def discard_idle_connections(self) -> None:
        """See `SQS.doubt_connections`: connections that idle in the pools may be dead, too."""
        for purpose in Purpose:
            caller = self._callers.get((os.getpid(), purpose))
            if caller is not None:
                caller.close()  # its pool; it stays usable, and so does a connection in use

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        """See `SQS.delete`. "Succeeded" does not prove that the handle still held the message."""
        entries = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
        return self._batch("DeleteMessageBatch", queue_url, entries)

    def change_visibility(self, queue_url: str, changes: Sequence[tuple[str, int]]) -> BatchResult:
        """See `SQS.change_visibility`. "Succeeded" does not prove that the handle still held the message."""
        entries = [
            {"Id": str(i), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for i, (handle, seconds) in enumerate(changes)
        ]
        return self._batch("ChangeMessageVisibilityBatch", queue_url, entries)

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        """See `SQS.send`."""
        return self._call("SendMessage", _field("MessageId"), QueueUrl=queue_url, **_params(message))

    def send_batch(self, queue_url: str, messages: Sequence[OutgoingMessage]) -> BatchResult:
        """See `SQS.send_batch`."""
        entries = [{"Id": str(i), **_params(message)} for i, message in enumerate(messages)]

        return self._batch("SendMessageBatch", queue_url, entries)

    def queue_url(self, name: str, owner: str | None = None) -> str:
        """See `SQS.queue_url`."""
        params: dict[str, Any] = {"QueueOwnerAWSAccountId": owner} if owner else {}
        return self._call("GetQueueUrl", _field("QueueUrl"), QueueName=name, **params)

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """See `SQS.create_queue`."""
        params: dict[str, Any] = {}
        if attributes:
            params["Attributes"] = dict(attributes)
        if tags:
            params["tags"] = dict(tags)
        try:
            return self._call("CreateQueue", _field("QueueUrl"), QueueName=name, **params)
        except RequestRefusedError as error:
            if error.code not in _NAME_IS_TAKEN:
                raise
            return self.queue_url(name)

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        """See `SQS.queue_attributes`."""
        return self._call("GetQueueAttributes", _attributes, QueueUrl=queue_url, AttributeNames=list(names))

    def purge(self, queue_url: str) -> None:
        """See `SQS.purge`."""
        self._call("PurgeQueue", _nothing, QueueUrl=queue_url)

    def delete_queue(self, queue_url: str) -> None:
        """See `SQS.delete_queue`."""
        self._call("DeleteQueue", _nothing, QueueUrl=queue_url)

    def close(self) -> None:
        """Close this process's connections, in any thread; the next call opens new ones. Idempotent."""
        for caller in self._forget_callers():
            caller.close()

    def _forget_callers(self) -> list[Caller]:
        with SESSIONS:
            mine = [self._callers.pop((os.getpid(), purpose), None) for purpose in Purpose]
        return [caller for caller in mine if caller is not None]

    def _batch(self, action: str, queue_url: str, entries: list[dict[str, Any]]) -> BatchResult:
        def failures(response: Mapping[str, Any]) -> BatchResult:
            done = {entry.get("Id") for entry in response.get("Successful", [])}
            errors = {entry.get("Id"): entry for entry in response.get("Failed", [])}
            failed: dict[int, SQSError] = {}
            for i, entry in enumerate(entries):
                if (error := errors.get(entry["Id"])) is not None:
                    failed[i] = translate_entry(error, action)
                elif entry["Id"] not in done:
                    failed[i] = _no_word_of_it(action)
            return BatchResult(failed)

        return self._call(action, failures, QueueUrl=queue_url, Entries=entries)

    def _call(
        self,
        action: str,
        read: Callable[[Mapping[str, Any]], T],
        purpose: Purpose | None = None,
        **params: Any,
    ) -> T:
        """Make one call and read its answer; whatever goes wrong in either comes out as an `SQSError`."""
        method, usual = _ACTIONS[action]
        started = self._clock.monotonic()
        outcome = "ok"
        caller: Caller | None = None
        try:
            caller = self._caller(purpose or usual, action)
            result = read(caller.call(action, method, params))
            self._answered = True
        except Exception as exc:  # noqa: BLE001 - the port's promise: an SQSError and nothing else
            error = self._explained(translate(exc, action), caller)
            outcome = error.code
            raise error from error.__cause__ or exc
        finally:
            if has_listener(SQSRequest):
                emit(SQSRequest(action, self._clock.monotonic() - started, outcome))
        return result

    def _explained(self, error: SQSError, caller: Caller | None) -> SQSError:
        """React to an error as far as it is about the client, which may be the reason."""
        if isinstance(error, CredentialsRefusedError) and not isinstance(error, ClockSkewError):
            self._look_for_credentials_anew(caller)
        elif error.code in _NO_ANSWER and caller is not None:
            caller.close()  # what idles in its pool may be as dead
        elif error.code in _NO_SUCH_HOST and caller is not None and not self._answered:
            return unknown_region(caller.client) or error
        return error

    def _look_for_credentials_anew(self, refused: Caller | None) -> None:
        """Forget the clients, which do not read rotated credentials by themselves; others make new ones."""
        # Once for all threads that failed with the same client.
        if self._settings.renewable and refused in self._callers.values():
            self.close()

    def _caller(self, purpose: Purpose, action: str) -> Caller:
        key = os.getpid(), purpose
        caller = self._callers.get(key)
        if caller is None:
            with SESSIONS:
                caller = self._callers.get(key) or self._new_caller(purpose, action)
                self._callers[key] = caller
        return caller

    def _new_caller(self, purpose: Purpose, action: str) -> Caller:
        try:
            return Caller(new_client(self._settings, purpose), self._clock.wall)
        except (TypeError, ValueError) as exc:  # what botocore says to a bad endpoint, region or option
            raise RequestRefusedError(
                f"{action}: boto3 cannot make a client of {self._settings!r}: {exc}",
                code=type(exc).__name__,
                action=action,
            ) from exc


def unknown_region(client: SQSClient) -> RequestRefusedError | None:
    """Say so, if botocore does not know the client's region and made its endpoint up from the name.

    A region may be newer than botocore, so this is worth saying only where nothing ever answered.
    """
    import botocore.session  # noqa: PLC0415 - see clients.new_client

    region = client.meta.region_name
    with SESSIONS:
        session = botocore.session.get_session()
        partitions = session.get_available_partitions()
        known = {name for each in partitions for name in session.get_available_regions("sqs", each)}
    if region in known or f".{region}." not in client.meta.endpoint_url:
        return None
    nearest = difflib.get_close_matches(region, sorted(known), n=1, cutoff=0.0)[0]
    return RequestRefusedError(
        f"{client.meta.endpoint_url} cannot be reached and botocore knows no region {region!r}. "
        f"The nearest is {nearest!r}.",
        code="UnknownRegionError",
    )


def _params(message: OutgoingMessage) -> dict[str, Any]:
    """What SendMessage is told of a message, and an entry of SendMessageBatch."""
    optional = {
        "MessageAttributes": dict(message.attributes) or None,
        "DelaySeconds": message.delay,
        "MessageGroupId": message.group_id,
        "MessageDeduplicationId": message.deduplication_id,
    }
    return {"MessageBody": message.body, **{k: value for k, value in optional.items() if value is not None}}


def _no_word_of_it(action: str) -> UnavailableError:
    return UnavailableError(f"{action} was answered without a word of this message", action=action)


def _messages(response: Mapping[str, Any]) -> list[ReceivedMessage]:
    return list(response.get("Messages", []))


def _attributes(response: Mapping[str, Any]) -> dict[str, str]:
    return dict(response.get("Attributes", {}))


def _field(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda response: str(response[name])


def _nothing(_response: Mapping[str, Any]) -> None:
    return None
