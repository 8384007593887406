"""The port to SQS: all requests that the package makes.

`boto.BotoSQS` implements it over boto3, `fake.FakeSQS` in memory. Both pass tests/conformance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_sqs_visibility.errors import SQSError


class ReceivedMessage(TypedDict, total=False):
    """A message as ReceiveMessage returns it (API_Message). System attributes are strings."""

    MessageId: str
    ReceiptHandle: str
    Body: str
    MD5OfBody: str
    Attributes: dict[str, str]
    MessageAttributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """Parameters of ReceiveMessage that rarely change between receives of a queue.

    Attributes:
        visibility_timeout: seconds; by default the queue's.
        system_attributes: MessageSystemAttributeNames.
        message_attributes: MessageAttributeNames.
        attempt_id: ReceiveRequestAttemptId, for FIFO queues only. If an answer was lost, another receive with
            the same id within five minutes brings the same messages.
    """

    visibility_timeout: int | None = None
    system_attributes: tuple[str, ...] = ()
    message_attributes: tuple[str, ...] = ()
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send.

    Attributes:
        attributes: MessageAttributes in SQS's own shape, `{"name": {"DataType": ..., "StringValue": ...}}`.
        delay: DelaySeconds; by default the queue's.
        visible_at: the instant at which the delay for an ETA ends, in seconds since the epoch. The delay is
            then reduced by the time that the message waits before it is sent.
        group_id: MessageGroupId. FIFO queues need one, standard queues use it for fairness.
        deduplication_id: MessageDeduplicationId, FIFO queues only.
    """

    body: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    delay: int | None = None
    group_id: str | None = None
    deduplication_id: str | None = None
    visible_at: float | None = None

    def delay_at(self, now: float) -> int | None:
        """Return DelaySeconds for a request at `now`, in seconds since the epoch."""
        if self.delay is None or self.visible_at is None:
            return self.delay
        return max(0, min(self.delay, math.floor(self.visible_at - now)))


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch, which may fail in part.

    Attributes:
        failed: the errors of failed entries, by position. All others succeeded.
        successful: SQS's entries for those; the `Id` is the position as text.
    """

    failed: Mapping[int, SQSError]
    successful: Sequence[Mapping[str, Any]] = ()

    def message_id(self, position: int) -> str:
        """Return the id of the message sent at that position; empty if unknown."""
        found = (entry for entry in self.successful if entry.get("Id") == str(position))
        return str(next(found, {}).get("MessageId", ""))


@dataclass(frozen=True, slots=True)
class MoveTask:
    """A task that moves the messages of a dead-letter queue (API_ListMessageMoveTasksResultEntry).

    Attributes:
        status: RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED.
        moved: approximate number of messages moved so far.
        to_move: approximate total; `None` if SQS does not tell.
        failure: why the task failed.
        started: milliseconds since the epoch; `None` if SQS does not tell.
    """

    status: str
    moved: int = 0
    to_move: int | None = None
    failure: str | None = None
    started: int | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """Where requests go. As text, the region, or the host if it is not the region's default endpoint.

    Attributes:
        region: the region that requests are signed for.
        endpoint: a URL.
    """

    region: str
    endpoint: str

    @property
    def is_amazons(self) -> bool:
        """Return whether the endpoint is Amazon's, including VPC endpoints, and not an emulator's."""
        host = urlsplit(self.endpoint).hostname or ""
        return ".amazonaws." in host or host.endswith(".api.aws")

    def __str__(self) -> str:
        host = urlsplit(self.endpoint).netloc.rpartition("@")[2]
        return self.region if self.is_amazons and host.startswith(f"sqs.{self.region}.") else host


class SQS(Protocol):
    """The API actions that we use.

    Any thread. Every method raises an `SQSError` and nothing else. A `queue_url` comes from `queue_url()`.
    Timeouts are whole seconds. A success does not prove that a receipt handle was still valid.
    """

    def location(self) -> Location:
        """Return where requests go, without a request."""

    def reach(self) -> None:
        """Check that the endpoint accepts connections. Makes no request, so it needs no permission.

        Raises:
            UnreachableError: the endpoint accepts no connections.
            RequestRefusedError: the settings are wrong.
        """

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """ReceiveMessage: up to `max_messages` (1 to 10) messages, waiting up to `wait` seconds (0 to 20)."""

    def discard_idle_connections(self) -> None:
        """Use new connections from now on, because answers are missing. Calls in progress continue."""

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        """DeleteMessageBatch: 1 to 10 receipt handles."""

    def change_visibility(
        self, queue_url: str, changes: Sequence[tuple[str, int]], *, urgent: bool = False
    ) -> BatchResult:
        """ChangeMessageVisibilityBatch: 1 to 10 pairs of receipt handle and seconds from now (0 to 43200).

        An urgent call waits only briefly for an answer, which leaves time for a retry.
        """

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        """SendMessage. Returns the message id."""

    def send_batch(
        self, queue_url: str, messages: Sequence[OutgoingMessage], *, urgent: bool = False
    ) -> BatchResult:
        """SendMessageBatch: 1 to 10 messages, of 1 MiB in all.

        An urgent call waits no longer for an answer than `send`.
        """

    def queue_url(self, name: str, owner: str | None = None) -> str:
        """GetQueueUrl, in this account or in account `owner`."""

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """CreateQueue. Returns the URL, also if a queue of that name exists."""

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        """GetQueueAttributes. Returns the attributes that are set, as strings."""

    def set_queue_attributes(self, queue_url: str, attributes: Mapping[str, str]) -> None:
        """SetQueueAttributes."""

    def purge(self, queue_url: str) -> None:
        """PurgeQueue."""

    def delete_queue(self, queue_url: str) -> None:
        """DeleteQueue."""

    def list_queues(self, prefix: str) -> list[str]:
        """ListQueues, all pages. Returns the URLs of this account's queues with that prefix.

        The answer may be a minute old.
        """

    def queue_tags(self, queue_url: str) -> dict[str, str]:
        """ListQueueTags."""

    def tag_queue(self, queue_url: str, tags: Mapping[str, str]) -> None:
        """TagQueue: adds tags, and replaces those with the same keys."""

    def untag_queue(self, queue_url: str, keys: Sequence[str]) -> None:
        """UntagQueue: removes the tags with these keys, as far as there are any."""

    def start_move_task(self, source_arn: str, destination_arn: str, per_second: int | None = None) -> None:
        """StartMessageMoveTask from a dead-letter queue, at 1 to 500 messages a second or SQS's own pace."""

    def latest_move_task(self, source_arn: str) -> MoveTask | None:
        """ListMessageMoveTasks. Returns the latest task of a dead-letter queue."""
