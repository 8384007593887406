"""The port to SQS: all requests that the package makes, in one protocol.

`boto.BotoSQS` implements it over boto3, `fake.FakeSQS` in memory; both pass tests/conformance.
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
    """One message as ReceiveMessage answers it (API_Message); the system attributes are strings."""

    MessageId: str
    ReceiptHandle: str
    Body: str
    MD5OfBody: str
    Attributes: dict[str, str]
    MessageAttributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """Parameters of ReceiveMessage that are the same for every receive of a queue, but for the attempt's id.

    Attributes:
        visibility_timeout: seconds; `None` leaves it to the queue.
        system_attributes: MessageSystemAttributeNames.
        message_attributes: MessageAttributeNames.
        attempt_id: ReceiveRequestAttemptId, FIFO queues only. A receive whose answer was lost brings the same
            messages when it is tried again with the same id within five minutes.
    """

    visibility_timeout: int | None = None
    system_attributes: tuple[str, ...] = ()
    message_attributes: tuple[str, ...] = ()
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message to send.

    Attributes:
        attributes: MessageAttributes in SQS's own shape, `{"name": {"DataType": ..., "StringValue": ...}}`.
        delay: DelaySeconds, or `None` for the queue's own.
        visible_at: where the delay is for an ETA, the instant at which it ends, in seconds since the epoch.
            What the message waits for before it is sent is then no part of its delay.
        group_id: MessageGroupId; FIFO queues need one, standard queues use it for fairness.
        deduplication_id: MessageDeduplicationId, FIFO queues only.
    """

    body: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    delay: int | None = None
    group_id: str | None = None
    deduplication_id: str | None = None
    visible_at: float | None = None

    def delay_at(self, now: float) -> int | None:
        """DelaySeconds of a request that is made `now`, in seconds since the epoch."""
        if self.delay is None or self.visible_at is None:
            return self.delay
        return max(0, min(self.delay, math.floor(self.visible_at - now)))


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The entries of a batch that failed, by position; the others succeeded. Batches often fail in part.

    Attributes:
        failed: their errors.
        successful: SQS's own entries for the others; their `Id` is the position, as text.
    """

    failed: Mapping[int, SQSError]
    successful: Sequence[Mapping[str, Any]] = ()

    def message_id(self, position: int) -> str:
        """The id of the message that was sent from that position; empty if it is not known."""
        found = (entry for entry in self.successful if entry.get("Id") == str(position))
        return str(next(found, {}).get("MessageId", ""))


@dataclass(frozen=True, slots=True)
class MoveTask:
    """A task that moves the messages of a dead-letter queue (API_ListMessageMoveTasksResultEntry).

    Attributes:
        status: RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED.
        moved: messages so far, approximately.
        to_move: messages in all, likewise; `None` where SQS does not tell.
        failure: why it failed.
        started: when, in milliseconds since the epoch; `None` where SQS does not tell.
    """

    status: str
    moved: int = 0
    to_move: int | None = None
    failure: str | None = None
    started: int | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """Where requests go. As text, the region, or the host of an endpoint that is not the region's own.

    Attributes:
        region: the one that requests are signed for.
        endpoint: the URL of the endpoint.
    """

    region: str
    endpoint: str

    @property
    def is_amazons(self) -> bool:
        """Whether the endpoint is one of Amazon's, VPC endpoints included; an emulator's is not."""
        host = urlsplit(self.endpoint).hostname or ""
        return ".amazonaws." in host or host.endswith(".api.aws")

    def __str__(self) -> str:
        host = urlsplit(self.endpoint).netloc.rpartition("@")[2]
        return self.region if self.is_amazons and host.startswith(f"sqs.{self.region}.") else host


class SQS(Protocol):
    """The API actions that we use.

    Every method may be called from any thread and raises an `SQSError` and nothing else. A `queue_url` is
    `queue_url()`'s. Timeouts are whole seconds. A success does not prove that the handle held the message.
    """

    def location(self) -> Location:
        """Return where requests go. None is made."""
        ...

    def reach(self) -> None:
        """Connect to the endpoint, unless that was done just now. No request, and no permission.

        Raises:
            UnreachableError: nobody takes connections there.
            RequestRefusedError: the settings are no good.
        """
        ...

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """ReceiveMessage: up to `max_messages` (1 to 10) messages, waiting up to `wait` seconds (0 to 20)."""
        ...

    def discard_idle_connections(self) -> None:
        """Use new connections from now on, since answers fail to come. No request; calls in flight go on."""
        ...

    def delete(self, queue_url: str, handles: Sequence[str]) -> BatchResult:
        """DeleteMessageBatch: 1 to 10 receipt handles."""
        ...

    def change_visibility(
        self, queue_url: str, changes: Sequence[tuple[str, int]], *, urgent: bool = False
    ) -> BatchResult:
        """ChangeMessageVisibilityBatch: 1 to 10 pairs of receipt handle and seconds from now (0 to 43200).

        An urgent call soon gives up an answer that does not come, so that there is time for another.
        """
        ...

    def send(self, queue_url: str, message: OutgoingMessage) -> str:
        """SendMessage: returns the message id."""
        ...

    def send_batch(
        self, queue_url: str, messages: Sequence[OutgoingMessage], *, urgent: bool = False
    ) -> BatchResult:
        """SendMessageBatch: 1 to 10 messages, of 1 MiB in all.

        If it is `urgent` the answer is waited for no longer than that of `send`.
        """
        ...

    def queue_url(self, name: str, owner: str | None = None) -> str:
        """GetQueueUrl, of this account or of account `owner`."""
        ...

    def create_queue(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """CreateQueue: returns the URL, of the existing queue if there is one of that name."""
        ...

    def queue_attributes(self, queue_url: str, names: Sequence[str]) -> dict[str, str]:
        """GetQueueAttributes: the attributes that are set, as strings."""
        ...

    def set_queue_attributes(self, queue_url: str, attributes: Mapping[str, str]) -> None:
        """SetQueueAttributes."""
        ...

    def purge(self, queue_url: str) -> None:
        """PurgeQueue."""
        ...

    def delete_queue(self, queue_url: str) -> None:
        """DeleteQueue."""
        ...

    def list_queues(self, prefix: str) -> list[str]:
        """ListQueues, all pages: the URLs of this account's queues whose names begin with the prefix.

        The answer may be a minute old.
        """
        ...

    def queue_tags(self, queue_url: str) -> dict[str, str]:
        """ListQueueTags."""
        ...

    def tag_queue(self, queue_url: str, tags: Mapping[str, str]) -> None:
        """TagQueue: adds tags, and replaces those of the same keys."""
        ...

    def start_move_task(self, source_arn: str, destination_arn: str, per_second: int | None = None) -> None:
        """StartMessageMoveTask: from a dead-letter queue, at a pace of 1 to 500 or SQS's own."""
        ...

    def latest_move_task(self, source_arn: str) -> MoveTask | None:
        """ListMessageMoveTasks, of a dead-letter queue: the latest one."""
        ...
