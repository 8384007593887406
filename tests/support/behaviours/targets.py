"""Implementations of SQS that rows are replayed on: our fake, and whatever boto3 can talk to."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import SQSError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_sqs_visibility.aws.port import BatchResult, ReceivedMessage

#: Seconds between looks at figures that AWS calls approximate, and how often they must agree.
SETTLING_SECONDS = 5
SETTLED_LOOKS = 4

MADE_UP = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up", "region_name": "us-east-1"}


class RefusedError(Exception):
    """SQS refused a request. `code` is without its namespace."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code.rpartition("#")[2].rpartition(".")[2]


class CannotAskError(Exception):
    """The implementation has no words for a request."""


class Target(Protocol):
    """An implementation. Queues are given by URL, entries of batches as boto3 has them, without QueueUrl."""

    unit: float  # seconds that a row's unit of time lasts
    is_sampled: bool  # a short poll may miss messages, and a long one may bring less than there is

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def create(self, name: str, attributes: Mapping[str, str]) -> str: ...
    def send(self, url: str, entry: Mapping[str, Any]) -> str: ...
    def send_batch(self, url: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]: ...
    def receive(self, url: str, parameters: Mapping[str, Any], there: int) -> list[ReceivedMessage]: ...
    def change(self, url: str, changes: Sequence[tuple[str, int]], *, batch: bool) -> dict[str, str]: ...
    def delete(self, url: str, handles: Sequence[str], *, batch: bool) -> dict[str, str]: ...
    def read(self, url: str, names: Sequence[str]) -> dict[str, str]: ...
    def numbers(self, url: str, names: Sequence[str]) -> list[int]: ...
    def set(self, url: str, attributes: Mapping[str, str]) -> None: ...
    def purge(self, url: str) -> None: ...
    def find(self, name: str) -> str: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete_queue(self, url: str) -> None: ...
    def move(self, source_arn: str, target_arn: str) -> None: ...


@contextmanager
def _refusals(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        found = getattr(error, "response", {}).get("Error", {})
        code = found.get("Code") or getattr(error, "code", None) or type(error).__name__
        raise RefusedError(code, found.get("Message", str(error))) from error


class FakeTarget:
    """Our fake. Its clock stands still between steps, unless the row waits for messages."""

    is_sampled = False

    def __init__(self, *, waits: bool = False, **switches: Any) -> None:
        self._clock = None if waits else FakeClock()
        self._sqs = FakeSQS(*([self._clock] if self._clock else []), **switches)
        self.unit = 0.2 if waits else 1.0

    def now(self) -> float:
        return time.monotonic() if self._clock is None else self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        (time.sleep if self._clock is None else self._clock.advance)(seconds)

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        return self._call(self._sqs.create_queue, name, attributes, {})

    def send(self, url: str, entry: Mapping[str, Any]) -> str:
        return self._call(self._sqs.send, url, _outgoing(entry))

    def send_batch(self, url: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        if [entry["Id"] for entry in entries] != [str(position) for position in range(len(entries))]:
            raise CannotAskError
        return self._batch(self._sqs.send_batch, url, [_outgoing(entry) for entry in entries])

    def receive(self, url: str, parameters: Mapping[str, Any], there: int) -> list[ReceivedMessage]:
        options = ReceiveOptions(
            parameters.get("VisibilityTimeout"), ("All",), ("All",), parameters.get("ReceiveRequestAttemptId")
        )
        limit, wait = parameters["MaxNumberOfMessages"], parameters.get("WaitTimeSeconds", 0)
        return self._call(self._sqs.receive, url, limit, wait, options)

    def change(self, url: str, changes: Sequence[tuple[str, int]], *, batch: bool) -> dict[str, str]:
        return self._batch(self._sqs.change_visibility, url, changes, alone=not batch)

    def delete(self, url: str, handles: Sequence[str], *, batch: bool) -> dict[str, str]:
        return self._batch(self._sqs.delete, url, handles, alone=not batch)

    def read(self, url: str, names: Sequence[str]) -> dict[str, str]:
        return self._call(self._sqs.queue_attributes, url, names)

    def numbers(self, url: str, names: Sequence[str]) -> list[int]:
        return [int(self.read(url, names)[name]) for name in names]

    def set(self, url: str, attributes: Mapping[str, str]) -> None:
        self._call(self._sqs.set_queue_attributes, url, attributes)

    def purge(self, url: str) -> None:
        self._call(self._sqs.purge, url)

    def find(self, name: str) -> str:
        return self._call(self._sqs.queue_url, name)

    def list(self, prefix: str) -> list[str]:
        return self._call(self._sqs.list_queues, prefix)

    def delete_queue(self, url: str) -> None:
        self._call(self._sqs.delete_queue, url)

    def move(self, source_arn: str, target_arn: str) -> None:
        self._call(self._sqs.start_move_task, source_arn, target_arn)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with _refusals(SQSError):
            return method(*arguments)

    def _batch(
        self, method: Callable[..., BatchResult], url: str, entries: Sequence[Any], *, alone: bool = False
    ) -> dict[str, str]:
        failed = self._call(method, url, entries).failed
        if alone and failed:
            raise RefusedError(failed[0].code or "", str(failed[0]))
        return {str(position): error.code or "" for position, error in sorted(failed.items())}


def _outgoing(entry: Mapping[str, Any]) -> OutgoingMessage:
    return OutgoingMessage(
        entry["MessageBody"],
        entry.get("MessageAttributes", {}),
        entry.get("DelaySeconds"),
        entry.get("MessageGroupId"),
        entry.get("MessageDeduplicationId"),
    )


class BotoTarget:
    """A server that boto3 talks to, emulator or AWS. May be shared by threads."""

    def __init__(self, url: str | None, *, unit: float = 1.0, is_sampled: bool = False) -> None:
        # What the client refuses no server is asked.
        config = Config(parameter_validation=False, retries={"mode": "standard"}, max_pool_connections=50)
        # An emulator gets no credentials of the environment.
        keys = {} if url is None else MADE_UP
        self._client = boto3.client("sqs", endpoint_url=url, config=config, **keys)
        self.unit = unit
        self.is_sampled = is_sampled

    def close(self) -> None:
        self._client.close()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        url = self._call("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"]
        if self.is_sampled:
            time.sleep(1)  # as the API reference of CreateQueue asks
        return str(url)

    def send(self, url: str, entry: Mapping[str, Any]) -> str:
        return self._call("send_message", QueueUrl=url, **entry)["MessageId"]

    def send_batch(self, url: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return self._batch("send_message_batch", url, entries)

    def receive(self, url: str, parameters: Mapping[str, Any], there: int) -> list[ReceivedMessage]:
        asked = {
            "QueueUrl": url,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
            **({"WaitTimeSeconds": 2} if self.is_sampled else {}),
            **parameters,
        }
        messages = self._call("receive_message", **asked).get("Messages", [])
        # A standard queue of AWS keeps messages back, of which there are as many as were sent.
        while self.is_sampled and 0 < len(messages) < min(there, asked["MaxNumberOfMessages"]):
            more = self._call("receive_message", **asked).get("Messages", [])
            messages += more
            if not more:
                break
        return messages

    def change(self, url: str, changes: Sequence[tuple[str, int]], *, batch: bool) -> dict[str, str]:
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle, seconds in changes]
        return self._of_handles("change_message_visibility", url, entries, batch=batch)

    def delete(self, url: str, handles: Sequence[str], *, batch: bool) -> dict[str, str]:
        return self._of_handles(
            "delete_message", url, [{"ReceiptHandle": handle} for handle in handles], batch=batch
        )

    def read(self, url: str, names: Sequence[str]) -> dict[str, str]:
        return self._call("get_queue_attributes", QueueUrl=url, AttributeNames=names).get("Attributes", {})

    def numbers(self, url: str, names: Sequence[str]) -> list[int]:
        looks: list[list[int]] = []
        while True:
            found = self.read(url, names)
            looks.append([int(found[name]) for name in names])
            last = looks[-SETTLED_LOOKS:]
            if not self.is_sampled or (len(last) == SETTLED_LOOKS and all(look == last[0] for look in last)):
                return looks[-1]
            time.sleep(SETTLING_SECONDS)

    def set(self, url: str, attributes: Mapping[str, str]) -> None:
        self._call("set_queue_attributes", QueueUrl=url, Attributes=attributes)

    def purge(self, url: str) -> None:
        self._call("purge_queue", QueueUrl=url)

    def find(self, name: str) -> str:
        return self._call("get_queue_url", QueueName=name)["QueueUrl"]

    def list(self, prefix: str) -> list[str]:
        return self._call("list_queues", QueueNamePrefix=prefix).get("QueueUrls", [])

    def delete_queue(self, url: str) -> None:
        self._call("delete_queue", QueueUrl=url)

    def move(self, source_arn: str, target_arn: str) -> None:
        self._call("start_message_move_task", SourceArn=source_arn, DestinationArn=target_arn)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        with _refusals(ClientError):
            return getattr(self._client, method)(**parameters)

    def _of_handles(
        self, method: str, url: str, entries: Sequence[dict[str, Any]], *, batch: bool
    ) -> dict[str, str]:
        if not batch:
            self._call(method, QueueUrl=url, **entries[0])
            return {}
        named = [{"Id": str(position), **entry} for position, entry in enumerate(entries)]
        return self._batch(f"{method}_batch", url, named)

    def _batch(self, method: str, url: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        failed = self._call(method, QueueUrl=url, Entries=entries).get("Failed", [])
        return {
            entry["Id"]: RefusedError(entry["Code"], "").code
            for entry in sorted(failed, key=lambda e: e["Id"])
        }


def forget(target: Target, url: str) -> None:
    """Delete a queue of a replay, if it is still there."""
    with suppress(RefusedError):
        target.delete_queue(url)


def redrive_policy(arn: str, receives: Any) -> dict[str, str]:
    """The attribute that makes the queue with that ARN a dead-letter queue."""
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})}
